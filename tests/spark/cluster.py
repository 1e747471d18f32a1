"""A standalone Spark cluster on loopback, out of the pip install: a master and two workers with a core each.

with Cluster(folder) as cluster:
    spark = session.build("name", master=cluster.url, conf=cluster.conf)
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from oncemq.spark import java
from oncemq.testing.spark import QUICK_START

_START_S = 120.0
_STOP_S = 30.0
_LOOPBACK = "127.0.0.1"


class Cluster:
    """Its processes, their logs and their work are in `folder`: `master.log`, `worker-0/`, …"""

    #: What a driver of this cluster sets: all workers take part, and everything stays on loopback.
    conf = {
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.driver.extraJavaOptions": QUICK_START,
        "spark.driver.host": _LOOPBACK,
        "spark.executor.extraJavaOptions": QUICK_START,
        "spark.executor.memory": "512m",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.sql.shuffle.partitions": "2",
    }

    def __init__(self, folder: Path, *, workers: int = 2) -> None:
        self._folder = folder
        self._workers_count = workers
        self._master: subprocess.Popen[bytes] | None = None
        #: They may be killed, one by one.
        self.workers: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _start(self) -> None:
        self._master = self._spawn("master", "master.Master")
        self.url = self._wait_for("master", self._master, r"Starting Spark master at (spark://\S+)")
        for number in range(self._workers_count):
            options = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / f"worker-{number}")]
            self.workers.append(self._spawn(f"worker-{number}", "worker.Worker", *options, self.url))
        for number, worker in enumerate(self.workers):
            self._wait_for(f"worker-{number}", worker, r"(Successfully registered) with master")

    def _spawn(self, name: str, main_class: str, *options: str) -> subprocess.Popen[bytes]:
        """spark-class becomes the JVM, so the process is the JVM's."""
        command = [f"{_find_spark_home()}/bin/spark-class", f"org.apache.spark.deploy.{main_class}"]
        command += ["--host", _LOOPBACK, "--port", "0", "--webui-port", "0", *options]
        environment = {
            **os.environ,
            "JAVA_HOME": java.find_java(is_quiet=True),
            "SPARK_DAEMON_JAVA_OPTS": QUICK_START,
            "SPARK_DAEMON_MEMORY": "512m",
            "SPARK_LOCAL_IP": _LOOPBACK,
        }
        with self._log(name).open("wb") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _wait_for(self, name: str, process: subprocess.Popen[bytes], pattern: str) -> str:
        until_s = time.monotonic() + _START_S
        while process.poll() is None and time.monotonic() < until_s:
            found = re.search(pattern, self._log(name).read_text())
            if found is not None:
                return found[1]
            time.sleep(0.05)
        raise AssertionError(f"the {name} of the Spark cluster did not start:\n{self._log(name).read_text()}")

    def _end(self) -> None:
        """Workers end their executors."""
        processes = [*self.workers, *([self._master] if self._master else [])]
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
