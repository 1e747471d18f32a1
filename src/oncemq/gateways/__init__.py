"""Other protocols: each gateway is an ordinary client of the broker, in a process beside it."""
