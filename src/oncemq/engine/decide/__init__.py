"""Decisions: what a command or the passing of time leads to.

Functions here read the state and return events, replies or refusals. They change no recorded state. Ticks and takes
update queues that are derived from the state and never recorded: due entries, and redeliveries whose delay has ended.
"""
