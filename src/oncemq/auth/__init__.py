"""Users, their credentials and their rights (docs/howto/secure.md). It does no network I/O and knows no broker.

operations.py is the table of what each operation needs. The broker enforces it (broker/security/).
"""
