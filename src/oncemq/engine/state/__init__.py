"""The state of the engine: topics, subscriptions, sessions, and what is due when.

State classes keep their own invariants. They decide nothing about commands, and only `apply` calls the methods that
change recorded state.
"""
