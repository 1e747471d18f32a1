"""The durable log of events: contract, memory twin, files on a disk seam.

A journal knows nothing of topics or sessions: it keeps groups of opaque events with the payloads that
belong to them, and snapshots of a state that it does not understand.
"""
