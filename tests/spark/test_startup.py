"""What makes Spark start faster: Python without archives on its path, and the archive of Java's classes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from oncemq.spark import java, startup

HOME = os.path.dirname(pyspark.__file__)
COMPLETE = (0xF00BABA8).to_bytes(4, "little") + b"classes"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "oncemq"


@pytest.mark.usefixtures("cache")
def test_workers_import_what_is_installed_and_keep_the_rest_of_their_path(tmp_path: Path) -> None:
    python = startup.worker_python()
    assert python != sys.executable
    places = [f"{HOME}/python/lib/pyspark.zip", f"{tmp_path}/a b", f"{HOME}/jars/spark-core.jar", f"{tmp_path}/*"]
    program = "import sys, os, pyspark; print(os.environ.get('PYTHONPATH'), pyspark.__file__, sys.argv[1], sep='|')"

    def output(path: str) -> list[str]:
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.check_output([python, "-c", program, "an argument"], env=environment, text=True).split("|")

    assert output(":".join(places)) == [f"{tmp_path}/a b:{tmp_path}/*", pyspark.__file__, "an argument\n"]
    assert output(places[0])[0] == "None"


def test_a_process_that_only_names_the_columns_does_not_import_arrow() -> None:
    program = (
        "import sys; from pyspark_oncemq import DefaultSource; DefaultSource({'topic': 'orders'}).schema(); "
        "print(*({'pyarrow', 'numpy', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "\n"


@pytest.mark.usefixtures("cache")
def test_another_spark_keeps_its_own_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert startup.worker_python() == sys.executable


@pytest.fixture
def runtime(tmp_path: Path) -> str:
    """The folder of a Java runtime that can archive classes."""
    (tmp_path / "java" / "lib" / "server").mkdir(parents=True)
    (tmp_path / "java" / "lib" / "server" / "classes.jsa").touch()
    return str(tmp_path / "java")


def test_the_first_java_archives_classes_and_later_ones_use_them(cache: Path, runtime: str) -> None:
    first = startup.class_archive_options(runtime, "")
    new = Path(first.partition("-XX:ArchiveClassesAtExit=")[2])
    assert new.parent == cache / "classes"
    new.write_bytes(b"\0\0\0\0 without a head yet")
    assert startup.class_archive_options(runtime, "") == "", "another one is being written"
    new.write_bytes(COMPLETE)
    [archive] = [cache / "classes" / f"{new.name.partition('.')[0]}.jsa"]
    assert startup.class_archive_options(runtime, "").endswith(f"-XX:SharedArchiveFile={archive}")
    assert os.listdir(cache / "classes") == [archive.name]


def test_a_cache_folder_may_have_a_space_in_its_name(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark splits the options of Java as a shell does."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    first = shlex.split(startup.class_archive_options(runtime, ""))[-1]
    new = Path(first.partition("-XX:ArchiveClassesAtExit=")[2])
    assert new.parent == tmp_path / "my cache" / "oncemq" / "classes"
    new.write_bytes(COMPLETE)
    later = shlex.split(startup.class_archive_options(runtime, ""))[-1]
    assert Path(later.partition("-XX:SharedArchiveFile=")[2]).read_bytes() == COMPLETE


def test_an_archive_that_was_left_incomplete_is_written_again(cache: Path, runtime: str) -> None:
    new = Path(startup.class_archive_options(runtime, "").partition("-XX:ArchiveClassesAtExit=")[2])
    new.write_bytes(b"")
    (cache / "classes" / "former.jsa").write_bytes(COMPLETE)
    for path in (new, cache / "classes" / "former.jsa"):
        os.utime(path, (1, 1))
    assert "-XX:ArchiveClassesAtExit=" in startup.class_archive_options(runtime, "")
    assert os.listdir(cache / "classes") == []


@pytest.mark.usefixtures("cache")
def test_who_decides_about_archives_himself_is_left_alone(runtime: str, tmp_path: Path) -> None:
    for option in ("-Xshare:off", "-XX:SharedArchiveFile=/mine.jsa", "-XX:ArchiveClassesAtExit=/mine.jsa"):
        assert startup.class_archive_options(runtime, f"-Xmx1g {option}") == ""
    assert startup.class_archive_options(str(tmp_path), "") == "", "the runtime has no archive of its own"


def test_a_runtime_is_described_without_starting_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_bytes(b"\x7fELF and no program")
    (tmp_path / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.8"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java.find_runtime() == java.Java(home=str(tmp_path), version=21)
