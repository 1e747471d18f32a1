"""Tools for tests with real crashes; `oncemq chaos` and the crash campaigns of the test suite use them.

processes    forks child processes, which are killed with SIGKILL and leave nothing behind
push_peers   publishers and subscribers of the push gateway
event_log    what each process did, written so that SIGKILL leaves complete entries
evidence     what event logs say, collected
checker      compares the evidence with the guarantees
"""
