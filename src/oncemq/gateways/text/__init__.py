"""The text gateway: requests and replies as text, over any ZeroMQ REQ or DEALER socket (docs/howto/text.md)."""
