"""A progress bar on a terminal; otherwise a line after each tenth."""

from __future__ import annotations

import sys
import time

_BAR_CHARACTERS = 30


class Progress:
    """Shows how many kills are done."""

    def __init__(self, total: int) -> None:
        self._total = max(1, total)
        self._began = time.monotonic()
        self._shown_tenth = 0

    def show(self, done: int, status: str) -> None:
        per_second = done / max(0.001, time.monotonic() - self._began)
        text = f"{done}/{self._total} kills, {per_second:.1f}/s, {status}"
        if sys.stderr.isatty():
            filled = "█" * (_BAR_CHARACTERS * done // self._total)
            end = "\n" if done == self._total else ""
            sys.stderr.write(f"\r{filled:·<{_BAR_CHARACTERS}} {text} {end}")
        elif (tenth := 10 * done // self._total) > self._shown_tenth:
            self._shown_tenth = tenth
            sys.stderr.write(text + "\n")
        sys.stderr.flush()
