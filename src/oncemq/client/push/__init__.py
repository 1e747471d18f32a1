"""Subscriptions whose messages come from a push gateway's live feed."""
