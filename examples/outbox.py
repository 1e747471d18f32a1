"""A sensor that never loses a reading: broker away, network away, process killed.

    python examples/outbox.py readings.outbox tcp://127.0.0.1:5555

`put` returns when the reading is on this machine's disk. It reaches the broker by itself, once and in order; what is
left when the process ends, the next run sends.
"""

import sys
import time

import oncemq

path = sys.argv[1]
url = sys.argv[2] if len(sys.argv) > 2 else "file:./oncemq-data"
with oncemq.connect(url, outbox=path) as client:
    for refusal in client.refusals():
        print(f"refused earlier: {refusal.text}")
        client.seen(refusal)
    print(f"{client.pending} left by an earlier run")
    for number in range(10):
        client.put("readings", f"{time.time():.3f} {number}", create=True)
    try:
        client.flush(timeout_s=2)
    except TimeoutError:
        print("the broker is away")
    print(f"{client.pending} wait in {path}")
