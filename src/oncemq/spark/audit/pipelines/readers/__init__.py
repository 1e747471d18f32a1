"""Reads the content of each kind of target."""
