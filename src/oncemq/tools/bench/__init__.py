"""Benchmarks of this machine. Each figure has an upper bound that it can't exceed (`oncemq bench`, `make bench`).

The upper bound is the smallest of: raw write and sync on the same disk with the group sizes of the run, the
transport alone, the page cache, and the codec alone. All are measured in the same run, because the machine may be
noisy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from oncemq.protocol import errors

if TYPE_CHECKING:
    from oncemq.tools.bench.results import Row


def run(
    url: str | None, seconds: float, cases: list[str], progress: Callable[[str], None], is_pinned: bool = False
) -> list[Row]:
    """Measure the cases whose names start with one of `cases` (none: all), on an own broker or on the one at `url`.

    With `is_pinned`, the broker and the peers of the bounds have one CPU, and the clients another one.
    """
    from oncemq.tools.bench.cases import CASES
    from oncemq.tools.bench.environment import open_environment

    chosen = [name for name in CASES if not cases or any(name.startswith(case) for case in cases)]
    if not chosen:
        raise errors.SettingInvalid(f"no case is named {', '.join(cases)}; there are: {', '.join(CASES)}")
    rows: list[Row] = []
    with open_environment(url, seconds, progress, is_pinned) as environment:
        for name in chosen:
            progress(name)
            rows += CASES[name](environment)
        progress("")
    return rows
