"""Shared subscriptions: takes, leases, acks, lease renewal, dead letters."""
