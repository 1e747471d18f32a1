"""Decisions: what a command or the passing of time leads to.

Functions here read the state and return events, replies or refusals. They change no recorded state. Ticks remove due
entries from the schedule, which is derived from the state and never recorded.
"""
