"""`oncemq serve`: a broker as a process, with the gateways in a second process that it supervises.

It owns signals, the supervised gateway process and the choice of a journal for a broker. It is the only package that
knows both the broker and the gateways. It must not know how either works, and prints nothing itself: the command line
passes functions that announce addresses and tell the user other things.
"""
