"""Schemas of topics at a client: what is known of them, checks before a put, decoded values after a get."""
