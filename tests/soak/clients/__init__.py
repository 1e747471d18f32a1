"""The client processes of the soak, by protocol. Each logs what it did in an event log."""
