"""A reliable subscriber in plain pyzmq: every message once and in order, also those that came while it was away.

    python examples/push/reliable_subscriber.py kitchen orders

It listens to the live feed (SUB), acknowledges what it has (REQ), and is called for what it has missed (REP). Its
next offset is in a file, so that a message that comes again after a crash is recognised.
"""

import argparse
import json
import pathlib

import zmq

parser = argparse.ArgumentParser()
parser.add_argument("subscriber")
parser.add_argument("topic")
parser.add_argument("--feed", default="tcp://127.0.0.1:5558")
parser.add_argument("--acks", default="tcp://127.0.0.1:5559")
parser.add_argument("--count", type=int, default=0, help="end after so many messages")
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


def received(offset: int) -> dict:
    return {"type": "ack_received", "subscriber": options.subscriber, "topic": options.topic, "offset": offset}


file = pathlib.Path(f"{options.subscriber}-{options.topic}.offset")
address = f"tcp://127.0.0.1:{port}"
welcome = request(type="hello", subscriber=options.subscriber, topics=[options.topic], address=address)
expected = max(welcome["topics"][options.topic], int(file.read_text()) if file.exists() else 0)
print(f"welcome, at offset {expected}", flush=True)
early, seen = {}, 0


def take(offset: int, content: bytes) -> None:
    """Messages that come too early wait for those before them."""
    global expected, seen
    if offset >= expected:
        early[offset] = content
    while expected in early:
        print(f"{expected}: {early.pop(expected).decode(errors='replace')}", flush=True)
        expected += 1
        seen += 1
        file.write_text(str(expected))


poller = zmq.Poller()
poller.register(listening, zmq.POLLIN)
poller.register(called, zmq.POLLIN)
while not options.count or seen < options.count:
    for socket, _ in poller.poll(1000):
        if socket is called:
            head, content = called.recv_multipart()
            data = json.loads(head)
            take(data["offset"], content)
            called.send(json.dumps(received(data["offset"])).encode())
        else:
            _, header, *content = listening.recv_multipart()
            kind, offset, *_ = header.split()
            if kind == b"message":
                take(int(offset), content[0])
                request(**received(int(offset)))
