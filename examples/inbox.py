"""Store orders in a database, exactly once: the effect and the position are stored in one SQLite transaction.

    python examples/inbox.py bills.db [oncemq://127.0.0.1:5554]

You can kill it at any point and start it again. No bill is missing, and none is stored twice.
"""

import sqlite3
import sys

import oncemq

database = sqlite3.connect(sys.argv[1] if len(sys.argv) > 1 else "bills.db")
database.execute("create table if not exists bills (order_number text, text text)")
with oncemq.connect(sys.argv[2] if len(sys.argv) > 2 else None) as client:
    inbox = client.inbox("orders", "billing", database, start="earliest")
    client.put_many("orders", ["one pizza", "two salads", "soup"])

    # Inside the loop the connection is in a transaction, which is committed when the next message is requested.
    for message in inbox.messages(timeout_s=1):
        database.execute("insert into bills values (?, ?)", (message.idempotency_key, message.text))
    inbox.close()
[count] = database.execute("select count(*) from bills").fetchone()
print(f"{count} bills")
