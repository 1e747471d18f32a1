"""Orders through Spark, cell by cell: open it as a notebook (VS Code, Jupytext), or run it.

oncemq serve &
python examples/spark/orders.py
"""

# %% A session. It finds a Java runtime; `format("oncemq")` is available automatically.
import json
import os
import tempfile

import oncemq
from oncemq.spark import session

URL = os.environ.get("ONCEMQ_URL", "oncemq://127.0.0.1:5554")
spark = session.build("orders", master="local[2]")
folder = tempfile.mkdtemp(prefix="oncemq-orders-")

# %% Some orders. The topics keep their messages for a day, so that a batch read finds them.
client = oncemq.connect(URL)
for topic in ("orders", "totals"):
    client.create_topic(topic, retain_ms=24 * 3600 * 1000)
menu = [("pizza", 9.5), ("pasta", 8.0), ("salad", 6.5)]
orders = [{"table": number % 4, "item": menu[number % 3][0], "price": menu[number % 3][1]} for number in range(12)]
client.put_many("orders", [json.dumps(order) for order in orders])

# %% A topic as a table.
messages = spark.read.format("oncemq").option("url", URL).option("topic", "orders").load()
messages.printSchema()
messages.selectExpr("offset", "CAST(value AS string) AS value", "timestamp").show(3, truncate=False)

# %% SQL on the content of the messages.
SCHEMA = "table INT, item STRING, price DOUBLE"
messages.selectExpr(f"from_json(CAST(value AS string), '{SCHEMA}') AS o").select("o.*").createOrReplaceTempView("o")
spark.sql("SELECT item, count(*) AS sold, sum(price) AS total FROM o GROUP BY item ORDER BY item").show()


# %% A topic as a stream into another topic, exactly once. With `availableNow` the query ends after what is available.
def run() -> None:
    stream = (
        spark.readStream.format("oncemq")
        .option("url", URL)
        .option("topic", "orders")
        .option("subscription", "totals-query")
        .option("startingOffsets", "earliest")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .load()
    )
    parsed = stream.selectExpr(f"from_json(CAST(value AS string), '{SCHEMA}') AS o", "idempotency_key")
    dear = parsed.where("o.price > 7").selectExpr("CAST(o.table AS string) AS key", "to_json(o) AS value")
    query = (
        dear.writeStream.format("oncemq")
        .option("url", URL)
        .option("topic", "totals")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


run()
print("after the first run:", len(list(client.read("totals"))), "messages")

# %% Run it again after more orders: it processes only the new ones.
client.put_many("orders", [json.dumps({"table": 9, "item": "pizza", "price": 9.5})])
run()
run()
print("after two more runs:", len(list(client.read("totals"))), "messages")

# %% The progress of the stream. The last batch is acked when the next one begins.
for entry in client.subscriptions("orders"):
    print(f"{entry.subscriber}: {entry.lag} of {entry.end_offset} not acked")
client.close()
spark.stop()
