"""A topic with a schema: objects are put, checked and read, and the schema gets a second version.

Run a broker (`make serve`), then: python examples/typed_orders.py oncemq://127.0.0.1:5554
"""

import dataclasses
import sys
from decimal import Decimal

import oncemq

VERSION_1 = "id: int64 not null, price: decimal(10,2) not null"
VERSION_2 = VERSION_1 + ', currency: string not null default "EUR"'


@dataclasses.dataclass
class Order:
    id: int
    price: Decimal
    currency: str = "EUR"


def main() -> None:
    with oncemq.connect(sys.argv[1] if len(sys.argv) > 1 else "memory:") as client:
        client.create_topic("typed-orders", retain_ms=3_600_000)
        print("version", client.put_schema("typed-orders", VERSION_1, compatibility="full"))
        client.put("typed-orders", {"id": 1, "price": "9.50"})
        try:
            client.put("typed-orders", Order(2, Decimal("7.00"), "USD"))
        except oncemq.SchemaMismatch as error:
            print("refused:", error)
        print("version", client.put_schema("typed-orders", VERSION_2))
        client.put("typed-orders", Order(2, Decimal("7.00"), "USD"))
        for message in client.read("typed-orders", "earliest"):
            print(message.schema_version, message.decode(Order))


if __name__ == "__main__":
    main()
