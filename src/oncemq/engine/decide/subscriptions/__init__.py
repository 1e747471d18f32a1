"""Decisions on subscriptions: their owners and positions, and the leases of shared ones."""
