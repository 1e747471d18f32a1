"""Lines of a file into a topic and out again, as fast as it goes, each once.

    python examples/copy_lines.py FILE file:./oncemq-data

`put_nowait` does not wait for answers: lines travel together, in batches. `flush` waits for all of them, and
raises the first error. The consumer acks by itself, and only what it has written.
"""

import sys
from pathlib import Path

import oncemq

source = Path(sys.argv[1])
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
