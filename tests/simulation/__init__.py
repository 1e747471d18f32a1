"""Runs the broker and its clients in one process, with virtual time and seeded faults."""
