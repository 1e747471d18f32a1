"""The journal in PostgreSQL: one transaction per group, a lease for the one writer, and tables that users can query.

It needs psycopg (the extra `postgres`). Nothing outside of this package imports psycopg to reach a journal.
"""
