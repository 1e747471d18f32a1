"""A Spark session for tests: small, on two cores, with folders of its own.

All tests of a process share it, because its JVM takes seconds to start. With pytest-xdist each worker that runs such a
test has its own session: keep those tests in one file, and run `pytest --dist loadfile`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from oncemq.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Tests end before an optimizing compiler pays off: this halves the time of the JVM. They archive no classes.
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
_SMALL: dict[str, object] = {
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": 2,
}


@contextmanager
def spark_session(folder: Path) -> Iterator[SparkSession]:
    """Yield a session that keeps its tables and temporary files in `folder`. It is stopped at the end."""
    folders = {"spark.sql.warehouse.dir": (folder / "warehouse").as_uri(), "spark.local.dir": folder / "local"}
    spark = session.build("oncemq-tests", master="local[2]", conf=_SMALL | folders)
    try:
        yield spark
    finally:
        spark.stop()
