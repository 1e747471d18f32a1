"""The live feed: committed messages for SUB sockets, at most once."""
