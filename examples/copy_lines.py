"""Copy the lines of a file through a topic, each line once, at high speed.

    python examples/copy_lines.py [FILE] [oncemq://127.0.0.1:5554]

`put_nowait` does not wait for replies, so lines are sent in batches. `flush` waits for all replies and raises the first
error. The consumer acks lines after it has written them.
"""

import sys
from pathlib import Path

import oncemq

source = Path(sys.argv[1] if len(sys.argv) > 1 else "README.md")
with oncemq.connect(sys.argv[2] if len(sys.argv) > 2 else "memory:") as client:
    writer = client.subscribe("lines", "writer", auto_ack=False)
    with source.open("rb") as lines:
        for line in lines:
            client.put_nowait("lines", line)
    client.flush()

    with source.with_suffix(".copy").open("wb") as copy:
        while messages := writer.get_many(10_000):
            copy.writelines(message.value for message in messages)
            copy.flush()
            writer.ack(messages[-1])
    print(f"{source.stat().st_size} bytes copied, {client.subscriptions('lines')[0].end_offset} lines")
