"""Requests on their way through the broker: the queues of the peers, their turns and budgets, and those that wait for
messages."""
