"""A sensor that loses no reading if the broker or the network is unavailable, or if its process is killed.

    python examples/outbox.py readings.outbox [oncemq://127.0.0.1:5554]

`put` returns when the reading is on the local disk. It reaches the broker automatically, once and in order. Readings
that are left when the process ends are sent by the next run.
"""

import sys
import time

import oncemq

path = sys.argv[1] if len(sys.argv) > 1 else "readings.outbox"
url = sys.argv[2] if len(sys.argv) > 2 else None
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
        print("the broker is unreachable")
    print(f"{client.pending} wait in {path}")
