"""The version of the package and of every external format."""

__version__ = "0.1.0"

#: Native protocol: the first element of every request and reply.
WIRE_VERSION = 1
#: Segments and groups of the file journal, and the events in them. All lower versions can be read.
JOURNAL_VERSION = 6
#: Snapshots of the engine's state. All lower versions can be read.
SNAPSHOT_VERSION = 6
