"""Peers that misbehave on purpose, and the campaign that measures what they do to a listener and to other peers."""
