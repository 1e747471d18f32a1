"""The soak: a mixed load over all protocols on a real broker, with kills, slow and hostile peers, for minutes or hours.

    python -m tests.soak --minutes 60
    python -m tests.soak --minutes 10 --seed 7 --json

A run is divided into rounds of about a minute. Each round has topics of its own. At its end all clients finish their
work, the evidence of the round is judged, and the topics are deleted. So the soak itself needs the same memory and disk
in each round, and each checkpoint is exact.

plan        the phases of a run, its clients and its faults, derived from a seed
clients     the client processes, by protocol
hostile     slow and hostile peers, one kind at a time
server      the broker with all its gateways: starts, kills, restarts
round       one round: load, faults, drain, evidence
evidence    what the logs of a round say, judged by `oncemq.tools.faults.checker`
resources   memory, descriptors, threads, zombies and segments, and what is a violation
report      the verdict, as text and as JSON
run         all rounds
"""
