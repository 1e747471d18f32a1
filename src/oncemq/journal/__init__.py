"""The journal: the durable log of events, with the payloads that belong to them, and snapshots.

The contract (contract.py) has three implementations: files on a disk, PostgreSQL, and memory. A journal must not know
topics, sessions or the meaning of an event: events and snapshots are opaque bytes to it. It knows nothing of clients
and sends nothing.
"""
