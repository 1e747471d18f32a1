"""The page of stats: whole, offline, and nothing in it that a topic's name could break."""

from __future__ import annotations

from html.parser import HTMLParser

import msgspec
import pytest

from oncemq.spark.stats.charts import Line, fill_gaps, line_chart, time_text
from oncemq.spark.stats.model import (
    LagStats,
    LatencyStats,
    LatencyWindow,
    Stats,
    SubscriptionStats,
    TopicStats,
    WindowStats,
)
from oncemq.spark.stats.report import bytes_text, milliseconds_text, number_text, render_page, seconds_text

START_MS = 1_767_225_600_000


def some_stats(*, recorded: bool) -> Stats:
    name = 'or<b>ders & "more"'
    windows = [WindowStats(name, START_MS + 10_000 * at, 100 * at, 5000, 40, 90, 99) for at in range(1, 5)]
    latencies = [LatencyStats(name, what, 100, 7, 35, 9000) for what in ("put", "delivery")]
    latency_windows = [LatencyWindow(name, what, START_MS, 100, 7, 35, 9000) for what in ("put", "delivery")]
    return Stats(
        START_MS,
        "oncemq://127.0.0.1:5554",
        10.0,
        (TopicStats(name, 1000, 20_000, START_MS, START_MS + 50_000, 40, 90, 99, 7, 20.0),),
        tuple(windows),
        (SubscriptionStats(name, "billing", 12, 90.0), SubscriptionStats(name, "kitchen", 0, None)),
        tuple(latencies) if recorded else (),
        tuple(latency_windows) if recorded else (),
        (LagStats(name, "billing", START_MS, 12),) if recorded else (),
    )


class Tags(HTMLParser):
    """Counts tags that are opened and never closed; the parser itself does not report them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.texts: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("recorded", [False, True])
def test_the_page_is_whole_and_needs_nothing_from_elsewhere(recorded: bool) -> None:
    tags = Tags()
    tags.feed(render_page(some_stats(recorded=recorded)))
    assert tags.open == []
    assert tags.addresses == []
    assert "script" not in tags.seen
    assert "b" not in tags.seen, "a topic's name became markup"
    assert tags.seen.count("svg") == (7 if recorded else 4)
    assert 'or<b>ders & "more"' in "".join(tags.texts)
    assert any("ONCEMQ_RECORD" in text for text in tags.texts) != recorded


def test_a_page_without_topics_says_so() -> None:
    empty = msgspec.structs.replace(some_stats(recorded=False), topics=(), windows=(), subscriptions=())
    assert "No data." in render_page(empty)
    assert "There are no subscriptions." in render_page(empty)


def test_every_point_of_a_line_lies_within_its_chart() -> None:
    chart = line_chart([Line("a", [(0, 0), (1000, 1234), (2000, 7)])], number_text, 1000)
    points = chart.split('points="')[1].split('"')[0]
    for point in points.split():
        x, y = map(float, point.split(","))
        assert 0 <= x <= 640
        assert 0 <= y <= 220


def test_a_window_in_which_nothing_happened_has_a_known_value() -> None:
    filled = fill_gaps([(0, 5), (1000, 6), (5000, 7)], 1000, 0)
    assert filled == [(0, 5), (1000, 6), (2000, 0), (3000, 0), (4000, 0), (5000, 7)]
    assert fill_gaps([(0, 5), (2000, 7)], 1000, None) == [(0, 5), (1000, 5), (2000, 7)], "a lag stays as it was"


def test_a_line_does_not_cross_windows_without_a_value() -> None:
    chart = line_chart([Line("p99", [(0, 5), (1000, 6), (5000, 7)])], number_text, 1000)
    assert chart.count("<polyline") == 2


def test_a_topic_has_the_same_colour_in_all_charts() -> None:
    stats = some_stats(recorded=True)
    other = msgspec.structs.replace(stats.latency_windows[0], topic="recorded only")
    latency = msgspec.structs.replace(stats.latencies[0], topic="recorded only")
    page = render_page(
        msgspec.structs.replace(
            stats, latencies=(latency, *stats.latencies), latency_windows=(other, *stats.latency_windows)
        )
    )
    assert '<span class="swatch line-1"></span>recorded only, p99' in page
    assert page.count('<span class="swatch line-0"></span>or&lt;b&gt;ders') == 4 + 2 + 1


def test_numbers_are_said_in_few_letters() -> None:
    assert [number_text(value) for value in (0, 0.25, 999, 1500, 2.5e6, 3e9)] == [
        "0",
        "0.25",
        "999",
        "1.5 k",
        "2.5 M",
        "3 G",
    ]
    assert (bytes_text(10), bytes_text(1500)) == ("10 B", "1.5 kB")
    assert (milliseconds_text(0.5), milliseconds_text(2500)) == ("0.5 ms", "2.5 s")
    assert [seconds_text(value) for value in (5, 90, 5400, 172_800)] == ["5 s", "1.5 min", "1.5 h", "2 d"]
    assert time_text(START_MS, 0) == "2026-01-01 00:00:00"
    assert time_text(START_MS, 60_000) == "00:00:00"
    assert time_text(START_MS + 25, 100) == "00:00:00.025"
    assert time_text(START_MS, 10**9) == "01 Jan"
