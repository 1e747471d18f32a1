"""`oncemq chaos`: a broker, publishers and subscribers as real processes, crashes, lost packets, and a verdict.

plan         who takes part and what happens to them when, all drawn from a seed
nursery      processes that are forked, killed and leave nothing behind
packets      the proxy between clients and broker, which loses, doubles and delays
sabotage     the proxy cheats on purpose: the verdict must notice
diary        what each process says it did, written so that SIGKILL leaves whole entries
working, publishers, subscribers, auditor     what the processes do
counting     numbers that they share, for the screen alone
evidence, checker                             what the diaries prove
report, screen                                what a person sees
run          the whole of it, in its order
"""
