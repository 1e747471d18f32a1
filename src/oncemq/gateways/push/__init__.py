"""Push over ZeroMQ: plain PUB publishers and SUB subscribers, with acks and retransmission (docs/push.md)."""
