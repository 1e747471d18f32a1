"""A reliable publisher in plain pyzmq: every message is stored exactly once, whatever crashes.

    python examples/push/publisher.py orders "one pizza" "two salads"

The id is created before the message is sent. A request that is not answered is repeated with the same id.
"""

import argparse
import hashlib
import json
import sys
import time

import zmq

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("topic")
parser.add_argument("contents", nargs="+", metavar="content")
parser.add_argument("--origin", default="till-1")
parser.add_argument("--acks", default="tcp://127.0.0.1:5559")
options = parser.parse_args()

context = zmq.Context()


def request(head: dict, content: bytes) -> dict:
    """Repeat the request until there is a final answer."""
    while True:
        with context.socket(zmq.REQ) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(options.acks)
            socket.send_multipart([json.dumps(head).encode(), content])
            if socket.poll(2000):
                answer = json.loads(socket.recv())
                if not answer.get("again"):
                    return answer
            else:
                print(f"no answer from {options.acks} yet: is `oncemq serve --push` running?", file=sys.stderr)
        time.sleep(0.2)


try:
    for text in options.contents:
        content = text.encode()
        seed = b"%d %s" % (time.time_ns(), content)
        head = {
            "type": "publish",
            "origin": options.origin,
            "id": hashlib.md5(seed).hexdigest(),
            "topic": options.topic,
        }
        answer = request(head, content)
        if answer["type"] != "ack_published":
            raise SystemExit(f"refused: {answer['text']}")
        print(f"stored: {options.topic} {answer['offset']}")
except KeyboardInterrupt:
    sys.exit(130)
