"""Values of messages as columns, rows as values, and what happens to values that can't be parsed."""
