"""The outbox: puts that are durable on the local disk before they are sent."""
