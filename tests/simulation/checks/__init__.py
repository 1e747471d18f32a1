"""Models of what clients and the broker said to each other. Each raises `Violation` if a guarantee is broken."""
