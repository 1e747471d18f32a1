"""Applies events to the state: the only code that changes recorded state, in normal operation and in recovery.

Functions here decide nothing: an event contains its outcome, and all other changes follow from the event and the state.
The same events always lead to the same state.
"""
