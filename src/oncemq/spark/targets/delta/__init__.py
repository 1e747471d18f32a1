"""A Delta table as a streaming target: one transaction per batch."""
