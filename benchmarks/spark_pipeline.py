"""How long `oncemq pipeline run` takes for one message, compared with a plain Spark program for one file.

Both are new processes, which start a Java process of their own. Both write Parquet, with a checkpoint.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from oncemq.spark import java
from oncemq.testing.broker_process import BrokerProcess

_TOPIC = "one"
_FILE = """
name: one
source: {{topic: {topic}, start: earliest}}
value: {{format: text}}
target: {{parquet: {folder}/rows}}
trigger: available-now
"""


class PipelineBench:
    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self._broker = broker
        self._folder = folder / "pipeline"
        self._environment = {**os.environ, "ONCEMQ_URL": broker.url}
        self._runs = 0

    def prepare(self) -> None:
        java.use()
        self._environment |= {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}
        (self._folder / "in").mkdir(parents=True)
        (self._folder / "one.yaml").write_text(_FILE.format(topic=_TOPIC, folder=self._folder))
        with self._broker.connect() as client:
            client.create_topic(_TOPIC, retain_ms=24 * 3600 * 1000)

    def run_pipeline(self) -> float:
        """Return the seconds of a run that has one message to process."""
        with self._broker.connect() as client:
            client.put(_TOPIC, "one message")
        return self._seconds("-m", "oncemq", "pipeline", "run", "--quiet", str(self._folder / "one.yaml"))

    def run_plain(self) -> float:
        """Return the seconds of a run that has one file to process."""
        self._runs += 1
        (self._folder / "in" / f"{self._runs}.txt").write_text("one message\n")
        return self._seconds("-m", "benchmarks.spark_plain", str(self._folder))

    def _seconds(self, *arguments: str) -> float:
        begun = time.perf_counter()
        subprocess.run([sys.executable, *arguments], env=self._environment, check=True, stderr=subprocess.DEVNULL)
        return time.perf_counter() - begun


def run(broker: BrokerProcess, folder: Path, rounds: int) -> dict[str, Any]:
    """Measure both alternately. The best run of each is the result."""
    bench = PipelineBench(broker, folder)
    bench.prepare()
    # The first run of each creates its subscription, checkpoint and target.
    bench.run_pipeline(), bench.run_plain()
    pairs = [(bench.run_pipeline(), bench.run_plain()) for _ in range(rounds)]
    ours, theirs = (min(times) for times in zip(*pairs, strict=True))
    return {
        "case": "pipeline run of one message",
        "seconds": round(ours, 2),
        "limit": "plain Spark, files to Parquet",
        "limit_seconds": round(theirs, 2),
        "ratio": round(ours / theirs, 2),
    }
