"""The whole broker and its clients in one process, under virtual time and seeded faults."""
