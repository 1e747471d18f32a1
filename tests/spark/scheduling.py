"""All tests of Spark run in one worker of pytest-xdist, so that there is one JVM, and first, so that the other tests
fill the other workers meanwhile. Tests that share an expensive fixture run in one worker too. Loaded by the Makefile:
`pytest -n 2 -p tests.spark.scheduling`.

By folder, and not by `xdist_group` and `--dist loadgroup`: those have no effect with pytest 9.2 (pytest-xdist #1386).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

if TYPE_CHECKING:
    import pytest

FOLDER = "tests/spark/"
#: They look at one campaign.
_OF_THE_CAMPAIGN = (
    "tests/simulation/test_simulation.py::test_no_promise",
    "tests/simulation/test_simulation.py::test_every_event",
    "tests/simulation/test_simulation.py::test_every_sync_is_reached",
)


class SparkApart(LoadScopeScheduling):  # type: ignore[misc]
    """A scope goes to one worker, and the largest is the first to go: Spark's. Every other test is a scope itself."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(FOLDER):
            return FOLDER
        return "campaign" if nodeid.startswith(_OF_THE_CAMPAIGN) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SparkApart:
    return SparkApart(config, log)
