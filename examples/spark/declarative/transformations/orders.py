"""Reads orders from a topic into a table, and writes the expensive ones to another topic."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

URL = os.environ.get("ONCEMQ_URL", "oncemq://127.0.0.1:5554")
spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    stream = spark.readStream.format("oncemq").option("url", URL).option("topic", "orders")
    stream = stream.option("subscription", "declarative").option("startingOffsets", "earliest")
    parsed = stream.load().selectExpr("offset", "from_json(CAST(value AS string), 'item STRING, price DOUBLE') AS o")
    return parsed.selectExpr("offset", "o.item", "o.price")


dp.create_sink("dear_orders", "oncemq", {"url": URL, "topic": "dear-orders", "create": "true"})


@dp.append_flow(target="dear_orders")
def dear() -> DataFrame:
    return spark.readStream.table("orders").where("price > 7").selectExpr("to_json(struct(item, price)) AS value")
