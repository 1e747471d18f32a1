"""The first message: a broker inside this program, one topic, one subscriber.

    python examples/first_message.py file:./oncemq-data

To use a running broker (`oncemq serve`), pass its address instead. The program stays the same.
"""

import sys

import oncemq

with oncemq.connect(sys.argv[1] if len(sys.argv) > 1 else "memory:") as client:
    kitchen = client.subscribe("orders", "kitchen")
    receipt = client.put("orders", "one pizza", key="table-7")
    print(f"stored at offset {receipt.offset}, for {receipt.subscriptions} subscription")

    # A message is acked when the next one is requested, and when the loop ends.
    for message in kitchen.messages(timeout_s=0):
        print(f"{message.text}, for {message.key!r}")
