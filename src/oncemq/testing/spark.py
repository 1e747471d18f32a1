"""A Spark session for tests: small, quiet, on two cores, with folders of its own.

One for all tests of a process: its JVM takes seconds to start. Under pytest-xdist each worker that runs a test
with it has its own: keep those tests in one file, and run `pytest --dist loadfile`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from oncemq.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Tests are over before a thorough compiler pays: this halves the JVM's time.
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SMALL: dict[str, object] = {
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": 2,
}


@contextmanager
def spark_session(folder: Path) -> Iterator[SparkSession]:
    """A session that keeps its tables and temporary files in `folder`, and is stopped at the end."""
    places = {"spark.sql.warehouse.dir": (folder / "warehouse").as_uri(), "spark.local.dir": folder / "local"}
    spark = session.build("oncemq-tests", master="local[2]", conf=_SMALL | places)
    try:
        yield spark
    finally:
        spark.stop()
