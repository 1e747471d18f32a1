"""The inbox: a subscription whose position is stored in the user's own database."""
