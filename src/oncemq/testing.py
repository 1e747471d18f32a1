"""Fixtures for pytest."""
