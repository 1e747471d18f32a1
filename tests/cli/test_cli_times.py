"""Spans and moments of time, as people write them."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta

import click
import pytest

from oncemq.cli.messages.worker_pool import Terms
from oncemq.cli.support.options import DURATION, Start, moment_of
from oncemq.cli.support.signals import held_back, orderly


@pytest.mark.parametrize(
    ("text", "span_s"),
    [("5", 5.0), ("0", 0.0), ("250ms", 0.25), ("1.5s", 1.5), ("10m", 600.0), ("10min", 600.0), ("2 h", 7200.0)],
)
def test_a_span_has_a_unit_or_is_in_seconds(text: str, span_s: float) -> None:
    assert DURATION.convert(text, None, None) == span_s


@pytest.mark.parametrize("text", ["", "-5s", "5 parsecs", "h", "1h30m"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        DURATION.convert(text, None, None)


def test_a_moment_is_relative_or_as_iso_8601_has_it() -> None:
    assert moment_of("2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert moment_of("2026-01-31") == datetime(2026, 1, 31).astimezone()
    for text in ("-2h", "\N{MINUS SIGN}2h"):
        moment = moment_of(text)
        assert moment is not None
        before, after = datetime.now(UTC) - timedelta(hours=2, minutes=1), datetime.now(UTC) - timedelta(hours=2)
        assert before < moment <= after


@pytest.mark.parametrize("text", ["-2", "2h", "-", "1969-12-31", "tomorrow", "-99999999d"])
def test_what_is_no_moment_is_none(text: str) -> None:
    assert moment_of(text) is None


def test_a_number_is_an_offset_and_never_a_date() -> None:
    assert Start().convert("20260131", None, None) == 20_260_131


def test_each_failure_doubles_the_delay_up_to_five_minutes_or_what_was_asked_for() -> None:
    terms = Terms(("true",), retry_s=2.0)
    assert [terms.delay_s(tries) for tries in (1, 2, 3, 1000)] == [2.0, 4.0, 8.0, 300.0]
    assert Terms(("true",), retry_s=0.0).delay_s(50) == 0.0
    assert Terms(("true",), retry_s=900.0).delay_s(5) == 900.0


def test_a_signal_waits_for_what_must_not_be_torn_apart() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), orderly(), held_back():
        with held_back():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]
    with pytest.raises(SystemExit) as end, orderly():
        os.kill(os.getpid(), signal.SIGTERM)
    assert end.value.code == 143
