"""Reliable subscribers: registration, acknowledgements, retransmission."""
