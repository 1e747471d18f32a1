"""Frames: whole tables as messages of a topic with a schema, and messages as tables. Needs the extra `arrow`."""
