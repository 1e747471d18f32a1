"""Durations and times on the command line."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta

import click
import pytest

from oncemq.cli.main import cli
from oncemq.cli.messages.worker_pool import JobOptions
from oncemq.cli.support.options import DURATION, DURATION_MS, Duration, StartPosition, moment_of
from oncemq.cli.support.signals import orderly_exit, signals_deferred
from oncemq.cli.tools import reference


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [("5", 5.0), ("0", 0.0), ("250ms", 0.25), ("1.5s", 1.5), ("10m", 600.0), ("2 h", 7200.0), ("7d", 604_800.0)],
)
def test_a_duration_has_a_unit_or_is_in_seconds(text: str, duration_s: float) -> None:
    assert DURATION.convert(text, None, None) == duration_s
    assert DURATION_MS.convert(text, None, None) == duration_s * 1000


@pytest.mark.parametrize("text", ["", "-5s", "5 parsecs", "h", "1h30m", "10min"])
def test_anything_else_is_not_a_duration(text: str) -> None:
    with pytest.raises(click.BadParameter):
        DURATION.convert(text, None, None)


#: Their values are times, not durations.
POINTS_IN_TIME = ("--from", "--since", "--until")


def _duration_options() -> list[tuple[str, click.Option]]:
    """Return every option of every command that is a duration, whatever its type."""
    contexts = reference.command_contexts(click.Context(cli, info_name="oncemq"))
    return [
        (context.command_path, option)
        for context in contexts
        for option in context.command.params
        if isinstance(option, click.Option) and option.metavar == "TIME" and option.opts[0] not in POINTS_IN_TIME
    ]


@pytest.mark.parametrize(("command", "option"), _duration_options(), ids=lambda value: getattr(value, "name", value))
def test_a_bare_number_is_seconds_in_every_option(command: str, option: click.Option) -> None:
    """Settings of the broker stay text; a setting whose name ends in `_ms` is in milliseconds."""
    context = click.Context(click.Command(command))
    flag = option.opts[0]
    if not isinstance(option.type, Duration):
        assert "-ms" in flag, f"{command} {flag} is not a duration"
        assert command.startswith(("oncemq serve", "oncemq gateway"))
        return
    unit = 1000 if str(option.name).endswith("_ms") else 1
    for text, seconds in (("60", 60), ("500ms", 0.5), ("30s", 30), ("10m", 600), ("2h", 7200), ("7d", 604_800)):
        assert option.type_cast_value(context, text) == seconds * unit, text
    with pytest.raises(click.BadParameter, match="is not a duration"):
        option.type_cast_value(context, "10min")


def test_every_wait_and_timeout_is_a_duration() -> None:
    found = {(command, option.opts[0]) for command, option in _duration_options()}
    expected = {
        ("oncemq put", "--ttl"),
        ("oncemq put", "--delay"),
        ("oncemq put", "--timeout"),
        ("oncemq get", "--wait"),
        ("oncemq listen", "--wait"),
        ("oncemq work", "--lease"),
        ("oncemq work", "--wait"),
        ("oncemq work", "--grace"),
        ("oncemq work", "--retry-delay"),
        ("oncemq work", "--timeout-per-message"),
        ("oncemq sub", "--lease"),
        ("oncemq topics create", "--retain"),
    }
    assert expected <= found


def test_a_time_is_relative_or_in_iso_8601() -> None:
    assert moment_of("2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert moment_of("2026-01-31") == datetime(2026, 1, 31).astimezone()
    for text in ("-2h", "\N{MINUS SIGN}2h"):
        moment = moment_of(text)
        assert moment is not None
        before, after = datetime.now(UTC) - timedelta(hours=2, minutes=1), datetime.now(UTC) - timedelta(hours=2)
        assert before < moment <= after


@pytest.mark.parametrize("text", ["-2", "2h", "-", "1969-12-31", "tomorrow", "-99999999d"])
def test_anything_else_is_not_a_time(text: str) -> None:
    assert moment_of(text) is None


def test_a_number_is_an_offset_and_never_a_date() -> None:
    assert StartPosition().convert("20260131", None, None) == 20_260_131


def test_each_failure_doubles_the_delay_up_to_five_minutes_or_the_given_delay() -> None:
    options = JobOptions(("true",), retry_s=2.0)
    assert [options.delay_s(tries) for tries in (1, 2, 3, 1000)] == [2.0, 4.0, 8.0, 300.0]
    assert JobOptions(("true",), retry_s=0.0).delay_s(50) == 0.0
    assert JobOptions(("true",), retry_s=900.0).delay_s(5) == 900.0


def test_a_signal_waits_for_the_end_of_a_deferred_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), orderly_exit(), signals_deferred():
        with signals_deferred():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]
    with pytest.raises(SystemExit) as end, orderly_exit():
        os.kill(os.getpid(), signal.SIGTERM)
    assert end.value.code == 143
