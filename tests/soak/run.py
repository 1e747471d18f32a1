"""All rounds of a run, and what is checked at the end."""

from __future__ import annotations

import itertools
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from random import Random

import msgspec

from oncemq.tools.faults.processes import ForkedProcess
from tests.soak.clients.client import RoundContext
from tests.soak.hostile import ATTACKS, hold_connections
from tests.soak.plan import Phase, faults_of, phase_at
from tests.soak.report import Result
from tests.soak.resources import Watch, segments
from tests.soak.round import Round, RoundFailed
from tests.soak.server import Server

#: Modules that every client process would import otherwise.
_PRELOADED = ("oncemq.client.sync", "oncemq.client.aio", "oncemq.client.push.feed", "httpx")


class Scale(msgspec.Struct, frozen=True):
    """The size of a run."""

    minutes: float
    #: How long the load of a round lasts; the drain follows.
    load_s: float = 50.0
    #: Mean pause of each of eleven producers after a message: about 200 messages per second over all.
    pause_s: float = 0.05
    #: How long broker and gateway may take at the end until everything is given back.
    settle_s: float = 60.0

    def __str__(self) -> str:
        return f"--minutes {self.minutes:g} --load-s {self.load_s:g} --pause-s {self.pause_s:g}"


class Run:
    """A run in a folder."""

    def __init__(
        self, scale: Scale, seed: int, folder: Path, say: Callable[[str], None], sabotage: Sequence[str] = ()
    ) -> None:
        self._scale = scale
        self._folder = folder
        self._say = say
        self._sabotage = sabotage
        self._server = Server(folder)
        self._watch = Watch(self._server)
        self._attacks = _rotation(seed)
        self.result = Result(seed, scale.minutes, f"python -m tests.soak --seed {seed} {scale}")

    def run(self) -> Result:
        """Run all rounds. No process is left, however it ends."""
        began_s = time.monotonic()
        leaking: ForkedProcess | None = None
        try:
            self._server.start()
            self._server.wait_until_ready()
            self._watch.note_baseline()
            for module in _PRELOADED:
                import_module(module)
            self._run_rounds(began_s)
            self._note_memory()
            if "leak" in self._sabotage:
                leaking = self._fork_leak()
            self._check_end()
        except (RoundFailed, RuntimeError) as failure:
            self.result.problems.append(f"{failure}")
        finally:
            if leaking is not None:
                leaking.kill()
            self._server.broker.kill()
        self.result.seconds = time.monotonic() - began_s
        return self.result

    def _run_rounds(self, began_s: float) -> None:
        seconds = self._scale.minutes * 60
        for number in itertools.count(1):
            elapsed_s = time.monotonic() - began_s
            phase = phase_at(elapsed_s / seconds)
            if phase != "steady":
                self._note_memory()
            is_over = number > 1 and elapsed_s >= seconds
            if is_over and not self._sabotage:
                return
            # Sabotage has a round of its own, after the others.
            self._run_round(number, phase, self._sabotage if is_over else ())
            self._say(self._progress(number, phase, time.monotonic() - began_s))
            if is_over:
                return

    def _run_round(self, number: int, phase: Phase, sabotage: Sequence[str]) -> None:
        context = RoundContext(
            self._server.addresses,
            self._folder / f"round-{number}",
            self._folder,
            self.result.seed,
            number,
            self._scale.pause_s,
            tuple(sabotage),
        )
        round = Round(context, self._server, self._watch, phase)
        faults = faults_of(self.result.seed, number, phase, self._scale.load_s)
        verdict = round.run(faults, self._attacks, self._scale.load_s)
        self.result.add(number, verdict)
        self.result.kills += round.kills
        self.result.attacks += round.attacks
        if verdict.is_good:
            shutil.rmtree(context.folder)

    def _note_memory(self) -> None:
        """The steady phase is over: its samples are complete."""
        self.result.memory = self.result.memory or self._watch.end_steady()

    def _progress(self, number: int, phase: Phase, elapsed_s: float) -> str:
        counts, last = self.result.counts, self._watch.last
        used = ", ".join(
            f"{process} {each.bytes >> 20} MiB {each.descriptors} descriptors {each.threads} threads"
            for process, each in sorted(last.items())
        )
        violations = len(self.result.problems)
        return (
            f"{elapsed_s / 60:5.1f} min  round {number}, {phase}: {counts['acknowledged']:,} acknowledged, "
            f"{counts['delivered']:,} delivered, {sum(self.result.kills.values())} kills, {used}, "
            f"{segments(self._server.data)} segments, {violations} violations"
        )

    # The end.

    def _fork_leak(self) -> ForkedProcess:
        leaking = ForkedProcess(lambda: hold_connections(self._server.addresses), self._folder / "clients.log")
        time.sleep(1)
        return leaking

    def _check_end(self) -> None:
        self._server.wait_until_ready()
        self.result.problems += self._watch.leftovers(self._scale.settle_s)
        self.result.problems += tracebacks(self._server.broker.log_path)
        self.result.problems += self._watch.problems(self.result.memory)
        self.result.segments = segments(self._server.data)
        code = self._server.end()
        if code != 0:
            self.result.problems.append(f"the broker ended with exit code {code} after SIGTERM")


def tracebacks(log: Path) -> list[str]:
    """Return the exceptions that the broker and the gateway have logged, each once, with its number."""
    found: Counter[str] = Counter()
    is_inside = False
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("Traceback "):
            is_inside = True
        elif is_inside and line and not line[0].isspace():
            found[re.sub(r"0x[0-9a-f]+", "0x…", line)[:200]] += 1
            is_inside = False
    return [f"logged {count} times: {line}" for line, count in found.most_common()]


def _rotation(seed: int) -> Iterator[str]:
    kinds = [*ATTACKS]
    Random(f"attacks/{seed}").shuffle(kinds)
    return itertools.cycle(kinds)
