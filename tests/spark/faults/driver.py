"""A Spark driver process that runs streams until they end or until it is killed:

python -m tests.spark.faults.driver PLAN    the streams, as JSON
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from oncemq.spark import session
from oncemq.testing.spark import QUICK_START
from tests.spark.faults import faulty
from tests.spark.faults.streams import Stream

#: The suffix of a file next to the plan. It exists once the streams have started.
STARTED = ".started"


def main(plan: Path) -> int:
    streams = msgspec.json.decode(plan.read_bytes(), type=list[Stream])
    settings = {
        "spark.driver.extraJavaOptions": QUICK_START,
        "spark.driver.memory": "1g",
        "spark.local.dir": str(plan.parent / "local"),
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": (plan.parent / "warehouse").as_uri(),
    }
    # A task has three attempts.
    spark = session.build("faults", master="local[2,3]", conf=settings)
    faulty.register(spark)
    queries = [stream.start(spark) for stream in streams]
    plan.with_suffix(STARTED).touch()
    for query in queries:
        query.awaitTermination()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
