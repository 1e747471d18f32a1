"""The version of the package, and of every format that leaves the process."""

__version__ = "0.1.0"

#: The native protocol: the first element of every request and reply.
WIRE_VERSION = 1
#: Segments and groups of the file journal, and the events in them. Every lower version is read.
JOURNAL_VERSION = 3
#: The engine's state as a snapshot holds it. Every lower version is read.
SNAPSHOT_VERSION = 3
