"""Datagrams: plain packets of text, and extended packets that are delivered exactly once in both directions."""
