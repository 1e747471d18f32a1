"""The stream listener: connections over TCP and Unix sockets, in the poll loop of their process."""
