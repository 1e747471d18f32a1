"""The broker: the loop that takes requests, has the engine decide them, makes the decisions durable and sends replies.

It owns the requests that have arrived (requests/), recovery, housekeeping (snapshots, copy-forward, release), the
standby, the embedded broker, and the tools for the journal of a stopped broker (offline/). It is the only package that
connects engine, journal and network. It must not know how a decision is made (engine), how a group is stored (journal),
or what a gateway, the command line or a client does.
"""
