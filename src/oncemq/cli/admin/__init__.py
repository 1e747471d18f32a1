"""Commands for topics, subscriptions, sessions, dead letters, the journal and health."""
