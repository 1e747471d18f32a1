"""Settings of brokers, gateways and clients: their names, types, bounds and defaults, and where their values come from.

It also owns the texts of addresses, ports and durations. It opens no socket and no database, and knows nothing of what
a setting does to the package that uses it.
"""
