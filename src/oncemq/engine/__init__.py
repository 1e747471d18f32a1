"""The engine: a pure state machine. No I/O, no clock, no randomness, no logging.

`Engine.step` decides a command and returns what to record. `Engine.apply` is the only way to change the state, in
normal operation and in recovery. The broker does the I/O. The engine imports only the protocol and the journal
contract.
"""
