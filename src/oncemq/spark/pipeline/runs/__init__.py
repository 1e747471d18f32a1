"""The parts of a run: the streaming query, its progress, the lock of its checkpoint, and waiting for the broker."""
