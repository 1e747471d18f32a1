"""What a person sees of a run: a log of events, and on a terminal a live table below it.

There are three kinds with the same methods: nothing, lines of text, and colours with a table (if rich is installed).
"""

from __future__ import annotations

from typing import Any

import click

from oncemq.terminal import is_terminal, note
from oncemq.tools.chaos.report import Numbers, Result, lines_of

#: By the process that an event is about.
_COLOURS = {
    "broker": "magenta",
    "network": "blue",
    "gateway": "magenta",
    "pub": "cyan",
    "sub": "green",
    "chaos": "yellow",
}


class Display:
    """Shows nothing: programs get one JSON object at the end."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the terminal."""

    def log(self, elapsed_s: float, source: str, text: str) -> None:
        """Show an event."""

    def show(self, numbers: Numbers) -> None:
        """Show the current numbers."""

    def conclude(self, result: Result) -> None:
        """Show the verdict."""


class TextDisplay(Display):
    """Prints lines of text."""

    def log(self, elapsed_s: float, source: str, text: str) -> None:
        click.echo(f"{elapsed_s:5.1f} s  {source:8} {text}")

    def conclude(self, result: Result) -> None:
        first, *others = lines_of(result)
        click.echo(f"\nverdict  {first}")
        for line in others:
            click.echo(f"         {line}")


class TableDisplay(Display):
    """Shows colours and a live table, with rich; `console` is a terminal."""

    def __init__(self, console: Any) -> None:
        from rich.live import Live

        self._console = console
        # Without a refresh thread: this process forks.
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> TableDisplay:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def log(self, elapsed_s: float, source: str, text: str) -> None:
        self._console.print(log_line(elapsed_s, source, text))

    def show(self, numbers: Numbers) -> None:
        self._live.update(table_of(numbers), refresh=True)

    def conclude(self, result: Result) -> None:
        self._console.print(verdict_of(result))


def display_for(as_json: bool) -> Display:
    """Return the display that fits the output."""
    import sys

    if as_json:
        return Display()
    if not is_terminal(sys.stdout):
        return TextDisplay()
    try:
        from rich.console import Console
    except ImportError:
        note("For a live table: pip install 'oncemq[progress]'")
        return TextDisplay()
    return TableDisplay(Console())


def log_line(elapsed_s: float, source: str, text: str) -> Any:
    from rich.text import Text

    colour = _COLOURS[source.partition("-")[0]]
    style = "bold red" if "SIGKILL" in text else ""
    return Text.assemble((f"{elapsed_s:5.1f} s  ", "dim"), (f"{source:8} ", colour), (text, style))


def table_of(numbers: Numbers) -> Any:
    """Return the live table with the counts and the processes."""
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
        "duplicated": survived.packets_duplicated,
    }
    table = Table(title=f"{numbers.elapsed_s:.0f} of {numbers.seconds:g} s", title_justify="left", expand=True)
    for head in counted:
        table.add_column(head, justify="right")
    table.add_row(*(f"{value:,}" for value in counted.values()))
    processes = Table(box=None, expand=True)
    for head in ("process", "role", "state"):
        processes.add_column(head)
    processes.add_column("messages", justify="right")
    for row in numbers.processes:
        state = f"[green]{row.state}[/]" if row.state == "up" else f"[bold red]{row.state}[/]"
        processes.add_row(row.name, row.role, state, f"{row.messages:,}")
    return Group(table, processes)


def verdict_of(result: Result) -> Any:
    from rich.panel import Panel
    from rich.text import Text

    first, *others = lines_of(result)
    colour = "green" if result.is_good else "red"
    return Panel(Text.assemble((first, f"bold {colour}"), *(f"\n{line}" for line in others)), border_style=colour)
