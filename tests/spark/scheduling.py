"""All tests of Spark run in one worker of pytest-xdist, so that there is one JVM, and first, so that the other tests
fill the other workers meanwhile. Loaded by the Makefile: `pytest -n 2 -p tests.spark.scheduling`.

By folder, and not by `xdist_group` and `--dist loadgroup`: those have no effect with pytest 9.2 (pytest-xdist #1386).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

if TYPE_CHECKING:
    import pytest

FOLDER = "tests/spark/"


class SparkApart(LoadScopeScheduling):  # type: ignore[misc]
    """A scope goes to one worker, and the largest is the first to go: Spark's. Every other test is a scope itself."""

    def _split_scope(self, nodeid: str) -> str:
        return FOLDER if nodeid.startswith(FOLDER) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SparkApart:
    return SparkApart(config, log)
