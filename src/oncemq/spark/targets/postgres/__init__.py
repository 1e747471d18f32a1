"""A PostgreSQL table as a streaming target: tasks stage rows, the driver commits them once."""
