"""The HTTP gateway: topics and subscriptions under /v1, and the queue of producers and consumers beside it."""
