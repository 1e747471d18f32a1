"""Commands that put and consume messages."""
