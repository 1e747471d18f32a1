"""The text gateway: requests that are one text each, over any ZeroMQ REQ or DEALER socket (docs/howto/text.md)."""
