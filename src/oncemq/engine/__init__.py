"""The broker's mind: pure. No I/O, no clock, no randomness, no logging.

`Engine.step` decides about a command and says what to record; `Engine.apply` is the only way that state
changes, in normal work and in recovery alike. The shell (broker/) acts.
"""
