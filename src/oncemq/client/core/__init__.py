"""The state machine of a session: numbering, retries, failover. No I/O, no clock, no threads."""
