"""A reliable subscriber in plain pyzmq: it gets every message once and in order, even after a disconnection.

    python examples/push/reliable_subscriber.py kitchen orders

It listens to the live feed (SUB), acks what it has processed (REQ), and receives the messages that it has missed (REP).
It stores its next offset in a file, so that it recognises a message that is redelivered after a crash.
"""

import argparse
import json
import pathlib
import sys
import urllib.parse

import zmq

parser = argparse.ArgumentParser()
parser.add_argument("subscriber")
parser.add_argument("topic")
parser.add_argument("--feed", default="tcp://127.0.0.1:5558")
parser.add_argument("--acks", default="tcp://127.0.0.1:5559")
parser.add_argument("--count", type=int, default=0, help="exit after this number of messages")
options = parser.parse_args()

context = zmq.Context()
listening = context.socket(zmq.SUB)
listening.setsockopt(zmq.SUBSCRIBE, options.topic.encode() + b"\0")
listening.connect(options.feed)
called = context.socket(zmq.REP)
port = called.bind_to_random_port("tcp://127.0.0.1")


def request(**said) -> dict:
    while True:
        with context.socket(zmq.REQ) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(options.acks)
            socket.send(json.dumps(said).encode())
            if socket.poll(2000):
                answer = json.loads(socket.recv())
                if answer["type"] != "error":
                    return answer
                if not answer["again"]:
                    raise SystemExit(f"refused: {answer['text']}")
            else:
                print(f"no answer from {options.acks} yet: is `oncemq serve --push` running?", file=sys.stderr)


def received(**which) -> dict:
    return {"type": "ack_received", "subscriber": options.subscriber, "topic": options.topic, **which}


name = urllib.parse.quote(f"{options.subscriber}-{options.topic}", safe=" ")
file = pathlib.Path(f"{name}.position.json")
topic_id, expected = json.loads(file.read_text()) if file.exists() else (None, 0)
address = f"tcp://127.0.0.1:{port}"
welcome = request(type="hello", subscriber=options.subscriber, topics=[options.topic], address=address)
expected = max(expected, welcome["topics"][options.topic])
print(f"welcome, at offset {expected}", flush=True)
early, seen = {}, 0


def take(of_topic: int, offset: int, content: bytes, is_next: bool = False) -> None:
    """Process a message. A message that arrives out of order waits for those before it."""
    global topic_id, expected, seen
    if topic_id not in (None, of_topic):
        # The topic was deleted and created again: offsets start at 0.
        expected = 0
        early.clear()
    topic_id = of_topic
    if is_next:
        expected = max(expected, offset)
    if offset >= expected:
        early[offset] = content
    while expected in early:
        print(f"{expected}: {early.pop(expected).decode(errors='replace')}", flush=True)
        expected += 1
        seen += 1
        file.write_text(json.dumps([topic_id, expected]))


poller = zmq.Poller()
poller.register(listening, zmq.POLLIN)
poller.register(called, zmq.POLLIN)
while not options.count or seen < options.count:
    try:
        ready = poller.poll()
    except KeyboardInterrupt:
        break
    for socket, _ in ready:
        if socket is called:
            head, content = called.recv_multipart()
            data = json.loads(head)
            # Retransmissions arrive in order, so the messages in between have expired.
            take(data["topic_id"], data["offset"], content, is_next=True)
            called.send(json.dumps(received(offset=data["offset"])).encode())
        else:
            _, header, *content = listening.recv_multipart()
            kind, offset, _, of_topic = header.split()
            if kind == b"message":
                take(int(of_topic), int(offset), content[0])
                # Ack what is processed, but not messages that wait for those before them.
                request(**received(upto=expected))
