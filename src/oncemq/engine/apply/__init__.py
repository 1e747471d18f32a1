"""Applies events to the state: the only code that changes recorded state, in normal operation and in recovery.

Functions here decide nothing: an event contains its outcome. The same events always lead to the same state.
"""
