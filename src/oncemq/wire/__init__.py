"""The native protocol: commands and replies as frames (docs/protocol.md)."""
