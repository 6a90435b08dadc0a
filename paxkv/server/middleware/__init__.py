"""Middleware between a connection and its route."""
