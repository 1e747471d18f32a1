"""The HTTP gateway: topics and subscriptions under /v1, and a queue of producers and consumers."""
