"""Print new messages from the live feed with a SUB socket, and report messages that were missed.

python examples/push/listener.py orders
"""

import argparse
import sys

import zmq

#: A heartbeat is sent every second.
SILENT_MS = 3000

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("topic")
parser.add_argument("--feed", default="tcp://127.0.0.1:5558")
parser.add_argument("--count", type=int, default=0, help="exit after this number of messages")
options = parser.parse_args()

socket = zmq.Context().socket(zmq.SUB)
# The zero byte ends the topic: without it, "order" would match "orders" too.
socket.setsockopt(zmq.SUBSCRIBE, options.topic.encode() + b"\0")
socket.connect(options.feed)


def listen() -> None:
    topic_id = expected = None
    seen, is_silent = 0, False
    while not options.count or seen < options.count:
        if not socket.poll(SILENT_MS):
            if not is_silent:
                print(f"nothing from {options.feed} for 3 s: is `oncemq serve --push` running?", file=sys.stderr)
            is_silent = True
            continue
        is_silent = False
        _, header, *content = socket.recv_multipart()
        kind, offset, _, of_topic = header.split()
        offset = int(offset)
        if topic_id is None:
            print(f"listening from offset {offset}", flush=True)
            expected = offset
        elif of_topic != topic_id:
            # The topic was deleted and created again: offsets start at 0, so a lower offset is not a repetition.
            print("the topic was deleted and created again", flush=True)
            expected = 0
        topic_id = of_topic
        if offset > expected:
            print(f"missed {offset - expected} messages", flush=True)
            expected = offset
        if kind == b"message" and offset == expected:
            print(f"{offset}: {content[0].decode(errors='replace')}", flush=True)
            expected += 1
            seen += 1


try:
    listen()
except KeyboardInterrupt:
    sys.exit(130)
