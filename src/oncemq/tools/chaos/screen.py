"""What a person sees of a run: a log of what happens, and on a terminal a live table below it.

Three kinds with the same methods: lines of text, colours with a table (where rich is installed), nothing.
"""

from __future__ import annotations

from typing import Any

import click

from oncemq.cli.support.output import is_terminal, note
from oncemq.tools.chaos.report import Numbers, Result, lines_of

#: By who it is about.
_COLOURS = {"broker": "magenta", "network": "blue", "pub": "cyan", "sub": "green", "chaos": "yellow"}


class Silent:
    """For programs: they get one object at the end."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as it was."""

    def log(self, elapsed_s: float, who: str, text: str) -> None:
        """Something has happened."""

    def show(self, numbers: Numbers) -> None:
        """How things stand."""

    def conclude(self, result: Result) -> None:
        """The verdict, when all is over."""


class Plain(Silent):
    def log(self, elapsed_s: float, who: str, text: str) -> None:
        click.echo(f"{elapsed_s:5.1f} s  {who:8} {text}")

    def conclude(self, result: Result) -> None:
        first, *others = lines_of(result)
        click.echo(f"\nverdict  {first}")
        for line in others:
            click.echo(f"         {line}")


class Coloured(Silent):
    """With rich; `console` is a terminal."""

    def __init__(self, console: Any) -> None:
        from rich.live import Live

        self._console = console
        # Without a thread of its own: this process forks.
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Coloured:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def log(self, elapsed_s: float, who: str, text: str) -> None:
        self._console.print(log_line(elapsed_s, who, text))

    def show(self, numbers: Numbers) -> None:
        self._live.update(table_of(numbers), refresh=True)

    def conclude(self, result: Result) -> None:
        self._console.print(verdict_of(result))


def screen_for(as_json: bool) -> Silent:
    """What fits where the output goes."""
    import sys

    if as_json:
        return Silent()
    if not is_terminal(sys.stdout):
        return Plain()
    try:
        from rich.console import Console
    except ImportError:
        note("For a live table: pip install 'oncemq[progress]'")
        return Plain()
    return Coloured(Console())


def log_line(elapsed_s: float, who: str, text: str) -> Any:
    from rich.text import Text

    colour = _COLOURS[who.partition("-")[0]]
    style = "bold red" if "SIGKILL" in text else ""
    return Text.assemble((f"{elapsed_s:5.1f} s  ", "dim"), (f"{who:8} ", colour), (text, style))


def table_of(numbers: Numbers) -> Any:
    """The live table: how many, and who is there."""
    from rich.console import Group
    from rich.table import Table

    survived = numbers.survived
    counted = {
        "attempted": numbers.attempted,
        "acknowledged": numbers.acknowledged,
        "in flight": numbers.in_flight,
        "delivered": numbers.delivered,
        "crashes survived": survived.crashes,
        "packets lost": survived.packets_lost,
        "doubled": survived.packets_doubled,
    }
    table = Table(title=f"{numbers.elapsed_s:.0f} of {numbers.seconds:g} s", title_justify="left", expand=True)
    for head in counted:
        table.add_column(head, justify="right")
    table.add_row(*(f"{value:,}" for value in counted.values()))
    people = Table(box=None, expand=True)
    for head in ("who", "what", "state"):
        people.add_column(head)
    people.add_column("messages", justify="right")
    for actor in numbers.actors:
        state = f"[green]{actor.state}[/]" if actor.state == "up" else f"[bold red]{actor.state}[/]"
        people.add_row(actor.name, actor.what, state, f"{actor.messages:,}")
    return Group(table, people)


def verdict_of(result: Result) -> Any:
    from rich.panel import Panel
    from rich.text import Text

    first, *others = lines_of(result)
    colour = "green" if result.is_good else "red"
    return Panel(Text.assemble((first, f"bold {colour}"), *(f"\n{line}" for line in others)), border_style=colour)
