"""Exclusive and pattern subscriptions, and reading without a subscription."""
