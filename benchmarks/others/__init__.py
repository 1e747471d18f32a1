"""OnceMQ next to PostgreSQL as a queue, Redis Streams and NATS JetStream: `python -m benchmarks.others`.

candidates.py   what is compared: brokers, their durability, transports and clients
contract.py     what each broker offers: oncemq_broker.py, postgresql.py, redis_streams.py, jetstream.py
load.py         the client processes
run.py          rounds and turns: which candidate is measured when, and on which CPUs
results.py      figures, and their medians
report.py       tables for a terminal and for Markdown
charts.py       SVG charts; svg.py draws the bars and lines
"""
