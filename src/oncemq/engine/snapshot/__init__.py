"""Snapshots of the state: captured in chunks while the engine runs, restored, and relocated to another journal.

This package encodes and decodes bytes. It does not write files, and it makes no decisions.
"""
