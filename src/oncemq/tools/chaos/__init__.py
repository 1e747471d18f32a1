"""`oncemq chaos`: a broker, publishers and subscribers as real processes, crashes, lost packets, and a verdict.

plan           the processes and the schedule of faults, derived from a seed
packet_proxy   the network between clients and broker, which loses, duplicates and delays packets
sabotage       the proxy violates a guarantee on purpose: the verdict must notice
worker, publishers, subscribers, auditor     the processes
counters       numbers that the processes share, only for the display
evidence       what event logs and databases say at the end
report, display                              what a person sees
run            the run from start to verdict

Forking, event logs and the checker are in `oncemq.tools.faults`.
"""
