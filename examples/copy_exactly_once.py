"""Process messages of one topic into another, exactly once: the ack and the puts are one transaction.

    python examples/copy_exactly_once.py oncemq://127.0.0.1:5554

You can kill it at any point and start it again. It continues where the last transaction ended.
"""

import sys

import oncemq

with oncemq.connect(sys.argv[1] if len(sys.argv) > 1 else "memory:") as client:
    client.create_topic("words", retain_bytes=1024 * 1024)
    lines = client.subscribe("lines", "splitter", auto_ack=False)
    client.put_many("lines", ["one pizza", "two salads"])

    while messages := lines.get_many(100, timeout_s=0):
        with client.transaction() as transaction:
            for message in messages:
                transaction.put_many("words", message.text.split())
            transaction.ack(lines)

    print(" ".join(message.text for message in client.read("words")))
