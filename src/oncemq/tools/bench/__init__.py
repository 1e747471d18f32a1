"""Figures of this machine, each beside the limit that it can't exceed (`oncemq bench`, `make bench`).

A limit is the smallest of: raw write + sync on the same disk at the group sizes that the run really had,
one-way ZeroMQ, and the bare codec. All are measured in the same run, since the machine may be noisy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from oncemq.protocol import errors

if TYPE_CHECKING:
    from oncemq.tools.bench.results import Row


def run(url: str | None, seconds: float, cases: list[str], progress: Callable[[str], None]) -> list[Row]:
    """Measure the cases named (or whose names start so; none: all), on a broker of its own or on the one at `url`."""
    from oncemq.tools.bench.cases import CASES
    from oncemq.tools.bench.environment import ground

    chosen = [name for name in CASES if not cases or any(name.startswith(case) for case in cases)]
    if not chosen:
        raise errors.SettingInvalid(f"no case is named {', '.join(cases)}; there are: {', '.join(CASES)}")
    rows: list[Row] = []
    with ground(url, seconds, progress) as place:
        for name in chosen:
            progress(name)
            rows += CASES[name](place)
        progress("")
    return rows
