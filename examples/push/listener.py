"""A SUB socket at the live feed: prints what is stored from now on, and says what it has missed.

    python examples/push/listener.py orders
"""

import argparse

import zmq

parser = argparse.ArgumentParser()
parser.add_argument("topic")
parser.add_argument("--feed", default="tcp://127.0.0.1:5558")
parser.add_argument("--count", type=int, default=0, help="end after so many messages")
options = parser.parse_args()

socket = zmq.Context().socket(zmq.SUB)
# The zero byte ends the topic: without it, "order" would match "orders" too.
socket.setsockopt(zmq.SUBSCRIBE, options.topic.encode() + b"\0")
socket.connect(options.feed)

expected, seen = None, 0
while not options.count or seen < options.count:
    topic, header, *content = socket.recv_multipart()
    kind, offset, *_ = header.split()
    offset = int(offset)
    if expected is None:
        print(f"listening from offset {offset}", flush=True)
    elif offset > expected:
        print(f"missed {offset - expected} messages")
    if kind == b"next":
        expected = max(expected or 0, offset)
    elif expected is None or offset >= expected:
        print(f"{offset}: {content[0].decode(errors='replace')}", flush=True)
        expected = offset + 1
        seen += 1
