"""The protocol between clients and brokers: commands, replies, names, batches, frames, errors and limits.

Every package may import this one. It imports none of ours, and it does no I/O.
"""
