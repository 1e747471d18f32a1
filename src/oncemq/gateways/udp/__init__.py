"""Datagrams: plain packets of text, and an extended packet that makes both directions exactly once."""
