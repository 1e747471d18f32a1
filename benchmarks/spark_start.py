"""How long one run takes from the start of its process to the end: `oncemq pipeline run` of one message to Parquet,
compared with plain Spark, which copies one file to Parquet. `make bench-spark` runs it too.

    python -m benchmarks.spark_start [--folder DIR] [--rounds N]

Each run is a process of its own, and the two alternate. The first run of a pipeline on a machine is reported
separately: it archives Spark's classes for the later ones.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from oncemq.spark import java
from oncemq.testing.broker_process import BrokerProcess

_MASTER = "local[2]"
_PLAIN = f"""
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("{_MASTER}").getOrCreate()
rows = spark.readStream.schema("value string").text(sys.argv[1])
query = rows.writeStream.format("parquet").option("path", sys.argv[2]).option("checkpointLocation", sys.argv[3])
query.trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""
_PIPELINE = """\
name: {name}
source: {{topic: {name}}}
value: {{format: text}}
target: {{parquet: ./{name}}}
"""
#: The JVM of a run that has ended may still archive its classes.
_SETTLE_S = 120.0


def measure_start(folder: Path, rounds: int = 3) -> dict[str, Any]:
    """The seconds of the fastest run of each, their ratio, and the seconds of the first run of a pipeline."""
    bench = _StartBench(folder)
    with BrokerProcess(folder / "start-data") as broker:
        first = bench.pipeline_s(broker)
        bench.settle()
        runs = [(bench.pipeline_s(broker), bench.plain_s()) for _ in range(rounds)]
    ours, plain = (min(times) for times in zip(*runs, strict=True))
    figures = {"first_s": first, "pipeline_s": ours, "plain_s": plain, "ratio": ours / plain}
    return {"case": "start", **{name: round(value, 2) for name, value in figures.items()}}


class _StartBench:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        # With a cache of its own, so that the first run is a first run.
        home = {"JAVA_HOME": java.find_java(is_quiet=True), "XDG_CACHE_HOME": str(folder / "cache")}
        self._environment = {**os.environ, **home, "PYSPARK_PYTHON": sys.executable}

    def plain_s(self) -> float:
        place = self._next()
        (place / "in").mkdir(parents=True)
        (place / "in" / "one.txt").write_text("hello\n")
        paths = [str(place / name) for name in ("in", "out", "checkpoint")]
        return self._run([sys.executable, "-c", _PLAIN, *paths], {})

    def pipeline_s(self, broker: BrokerProcess) -> float:
        place = self._next()
        place.mkdir()
        (place / "pipeline.yaml").write_text(_PIPELINE.format(name=place.name))
        with broker.connect() as client:
            client.subscribe(place.name, place.name)
            client.put(place.name, "hello")
        command = [sys.executable, "-m", "oncemq", "pipeline", "run", str(place / "pipeline.yaml")]
        return self._run([*command, "--master", _MASTER, "--url", broker.url], {"JAVA_HOME": ""})

    def settle(self) -> None:
        """Wait until the archive of the first run is complete, or there is none."""
        classes = self._folder / "cache" / "oncemq" / "classes"
        size, deadline_s = -1, time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline_s:
            time.sleep(3)
            found = sum(path.stat().st_size for path in classes.glob("*"))
            if found == size and found:
                return
            size = found

    def _next(self) -> Path:
        self._count += 1
        return self._folder / f"start-{self._count}"

    def _run(self, command: list[str], variables: dict[str, str]) -> float:
        environment = {name: value for name, value in {**self._environment, **variables}.items() if value}
        begun = time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=self._folder)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
        return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--folder", default=".", help="where the data lies; never on tmpfs")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="oncemq-bench-", dir=chosen.folder)).absolute()
    try:
        print(measure_start(folder, chosen.rounds))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
