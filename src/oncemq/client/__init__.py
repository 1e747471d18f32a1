"""The client. Its public names are those of `oncemq` and `oncemq.aio`."""
