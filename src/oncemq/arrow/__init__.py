"""Batches as Arrow columns, and back. Needs the extra `arrow` (or `spark`).

columns.py    stored batches → the columns of messages
payloads.py   the columns of messages → payloads
"""
