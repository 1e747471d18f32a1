"""Durations: what is accepted, what it means, and what is refused."""

from __future__ import annotations

import pytest

from oncemq.config.durations import format_duration, parse_duration_ms


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("500ms", 500),
        ("30s", 30_000),
        ("10m", 600_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("1.5h", 5_400_000),
        (" 5 s ", 5000),
        ("30", 30_000),
        ("1.5", 1500),
        (".5", 500),
        ("0", 0),
        ("0ms", 0),
        (30, 30_000),
        (0.25, 250),
        ("0.0001", 1),
        ("1.0004", 1000),
    ],
)
def test_a_duration_has_a_unit_and_a_bare_number_is_seconds(text: str | float, milliseconds: int) -> None:
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize(("text", "milliseconds"), [("250", 250), (250, 250), ("2s", 2000), ("1.5h", 5_400_000)])
def test_a_bare_number_has_another_unit_if_the_caller_says_so(text: str | int, milliseconds: int) -> None:
    assert parse_duration_ms(text, bare_unit="ms") == milliseconds


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "soon", "-1", "-5s", -1, -0.5, "5 weeks", "1w", "30min", "5M", "1e3", "1h30m", "nan", "inf", "١s"),
        *(True, float("nan"), float("inf"), "9" * 400),
    ],
)
def test_anything_else_is_refused_with_examples(text: str | float) -> None:
    with pytest.raises(ValueError, match=r"is not a duration: .*500ms, 30s, 10m, 2h or 7d, or a bare number"):
        parse_duration_ms(text)


@pytest.mark.parametrize("milliseconds", [0, 1, 5, 999, 1000, 1500, 90_000, 60_000, 3_600_000, 7 * 86_400_000])
def test_a_formatted_duration_reads_back(milliseconds: int) -> None:
    assert parse_duration_ms(format_duration(milliseconds)) == milliseconds
