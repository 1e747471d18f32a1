"""Files of pipelines to deploy."""

from __future__ import annotations

from pathlib import Path

ORDERS = """\
name: Order_totals
source:
  topic: orders
value:
  format: json
  schema: id bigint, price double
target:
  postgres: ${ORDERS_DATABASE}
  table: totals
trigger: TRIGGER
"""
TOPICS = """\
name: copies
source:
  topic: orders
target:
  topic: copies
  create: true
"""
AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'


def orders(folder: Path, trigger: str = "available-now", **changes: str) -> str:
    text = ORDERS.replace("TRIGGER", trigger)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "orders.yaml"
    path.write_text(text)
    return str(path)


def topics(folder: Path) -> str:
    path = folder / "copies.yaml"
    path.write_text(TOPICS)
    return str(path)
