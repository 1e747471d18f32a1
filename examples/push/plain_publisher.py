"""Publish with a plain PUB socket. This is fast, but the program does not learn whether a message arrived.

python examples/push/plain_publisher.py orders "one pizza"
"""

import argparse
import time

import zmq

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("topic")
parser.add_argument("contents", nargs="+", metavar="content")
parser.add_argument("--publish", default="tcp://127.0.0.1:5557")
options = parser.parse_args()

socket = zmq.Context().socket(zmq.PUB)
socket.connect(options.publish)
# A PUB socket drops messages that are sent before the gateway has subscribed.
time.sleep(0.5)
for text in options.contents:
    socket.send_multipart([options.topic.encode(), text.encode()])
socket.close(linger=2000)
