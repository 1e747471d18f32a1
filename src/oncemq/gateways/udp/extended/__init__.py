"""Numbered packets: exactly once in both directions."""
