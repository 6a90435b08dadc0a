"""What stands between a connection and its route."""
