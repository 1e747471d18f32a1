"""The script for spark-submit, on a cluster of two workers: `make test-cluster`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncemq.client.sync import Client
from oncemq.spark.deploy import SubmitOptions, read_declared, render_script
from oncemq.testing.broker_process import BrokerProcess
from tests.spark.cluster import Cluster

pytestmark = pytest.mark.cluster

_ROOT = Path(__file__).parents[3]
_LIMIT_S = 600
PLACES = """\
name: places
source:
  topic: orders
  partitions: 2
transform:
  python: places:places
target:
  topic: places
"""
MODULE = """\
import sys
from pyspark.sql import functions as F


def places(rows):
    prefix = F.udf(lambda value: sys.prefix, "string")
    return rows.select(prefix("value").alias("value"))
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    # Workers must find OnceMQ in the Python that the script names, and nowhere else.
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with Cluster(tmp_path) as cluster:
        yield cluster


def packed(folder: Path) -> str:
    """An archive of a virtual environment, built with the commands of docs/howto/spark-clusters.md."""
    python = folder / "env" / "bin" / "python"
    constraints = _ROOT / "constraints.txt"
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--quiet", "--constraint", str(constraints)]
    subprocess.run([*install, f"{_ROOT}[spark-worker]"], check=True, timeout=_LIMIT_S)
    archive = folder / "oncemq-env.tar.gz"
    pack = [sys.executable, "-m", "venv_pack", "--prefix", str(folder / "env"), "--output", str(archive), "--quiet"]
    subprocess.run(pack, check=True, timeout=_LIMIT_S)
    return str(archive)


def submit(folder: Path, broker: BrokerProcess, cluster: Cluster, **where: str) -> str:
    (folder / "places.yaml").write_text(PLACES)
    (folder / "places.py").write_text(MODULE)
    options = SubmitOptions(master=cluster.url, url=broker.url, conf=cluster.conf, **where)
    script = folder / "run.sh"
    script.write_text(render_script([read_declared(str(folder / "places.yaml"))], options))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(_ROOT / "src")}
    found = subprocess.run(["sh", str(script)], env=environment, capture_output=True, text=True, timeout=_LIMIT_S)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stderr


def prefixes(client: Client) -> list[str]:
    return [message.value.decode() for message in client.read("places")]


@pytest.fixture
def topics(client: Client) -> None:
    client.subscribe("orders", "places")
    client.create_topic("places", retain_ms=3_600_000)
    client.put_many("orders", [b"%d" % number for number in range(100)])


@pytest.mark.usefixtures("topics")
def test_a_script_runs_where_oncemq_is_installed(
    tmp_path: Path, broker: BrokerProcess, client: Client, cluster: Cluster
) -> None:
    submit(tmp_path, broker, cluster, python=sys.executable)
    assert prefixes(client) == [sys.prefix] * 100


@pytest.mark.usefixtures("topics")
def test_workers_run_the_python_of_an_archive(
    tmp_path: Path, broker: BrokerProcess, client: Client, cluster: Cluster
) -> None:
    submit(tmp_path, broker, cluster, archive=packed(tmp_path))
    found = prefixes(client)
    assert len(found) == 100
    # Spark unpacks the archive in the working folder of each executor.
    assert {Path(prefix).name for prefix in found} == {"environment"}
    assert all(str(tmp_path / "worker-") in prefix for prefix in found)
