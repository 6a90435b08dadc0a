"""Beam search by transformers' rule."""
