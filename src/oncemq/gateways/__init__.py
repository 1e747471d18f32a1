"""Other protocols for the broker: each gateway is an ordinary client of the broker, in a process of its own."""
