"""`oncemq bench`, `chaos` and `completion`, and the generator of docs/reference."""
