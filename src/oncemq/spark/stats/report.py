"""The figures as one HTML page: opens from a file, offline, in light and in dark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import groupby

from oncemq.spark.stats.charts import Line, Point, line_chart, time_text, with_gaps_as_zero
from oncemq.spark.stats.figures import Figures, LatencyFigures, TopicFigures, WindowFigures
from oncemq.spark.stats.latency import DELIVERY_LATENCY, PUT_LATENCY

#: Lines of one chart; the busiest ones.
_LINES_MAX = 8

_STYLE = """
:root { --ink: #1d2733; --soft: #66758a; --line: #dde3ea; --page: #f6f8fa; --card: #fff; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf1; --soft: #93a1b3; --line: #2b3643; --page: #10161d; --card: #18212b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1400px; padding: 24px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 17px; margin: 0 0 8px; }
p { color: var(--soft); margin: 4px 0 16px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px;
  overflow-x: auto; }
main { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); }
main > .wide { grid-column: 1 / -1; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, .text { text-align: left; } th { color: var(--soft); font-weight: 500; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--line); } polyline { fill: none; stroke-width: 1.8; stroke: currentColor; }
circle { fill: currentColor; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; list-style: none; padding: 0; margin: 8px 0 0;
  color: var(--soft); font-size: 13px; }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px;
  background: currentColor; }
.line-0 { color: #2f7ed8; } .line-1 { color: #e0682f; } .line-2 { color: #2d9f6b; } .line-3 { color: #b455c6; }
.line-4 { color: #c9a227; } .line-5 { color: #d6455d; } .line-6 { color: #3fa7b8; } .line-7 { color: #8a7f72; }
"""


def page(figures: Figures) -> str:
    """One HTML document."""
    sections = [_topic_table(figures), *_topic_charts(figures), _subscription_table(figures), *_recorded(figures)]
    title = f"OnceMQ: {len(figures.topics)} topic{'' if len(figures.topics) == 1 else 's'}"
    made = time_text(figures.made_ms, 0)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>{escape(figures.broker)}, made {made} UTC, windows of {figures.window_s:g} s. All times are UTC.</p>
<main>
{"".join(sections)}
</main>
</body>
</html>
"""


def _section(title: str, inside: str, *, wide: bool = False) -> str:
    return f"<section{' class=wide' if wide else ''}><h2>{escape(title)}</h2>{inside}</section>\n"


# Topics.


def _topic_table(figures: Figures) -> str:
    heads = ("Topic", "Messages", "Bytes", "Per second", "Size p50", "p99", "Largest", "Keys", "First", "Last")
    return _section("Topics", _table(heads, map(_topic_row, figures.topics)), wide=True)


def _topic_row(topic: TopicFigures) -> tuple[str, ...]:
    sizes = (bytes_text(size) for size in (topic.size_p50, topic.size_p99, topic.size_max))
    return (
        topic.topic,
        f"{topic.messages:,}",
        bytes_text(topic.bytes),
        f"{topic.per_s:,.1f}",
        *sizes,
        f"{topic.keys:,}",
        time_text(topic.first_ms, 0),
        time_text(topic.last_ms, 0),
    )


def _topic_charts(figures: Figures) -> Iterable[str]:
    width_ms, width_s = figures.window_s * 1000, figures.window_s
    busiest = sorted(figures.topics, key=lambda topic: -topic.messages)[:_LINES_MAX]
    names = [topic.topic for topic in busiest]
    windows = {topic: list(rows) for topic, rows in groupby(figures.windows, key=lambda row: row.topic)}

    def chart(value: Callable[[WindowFigures], float], unit: Callable[[float], str], *, is_rate: bool) -> str:
        lines = []
        for name in names:
            points: list[Point] = [(row.start_ms, value(row)) for row in windows.get(name, [])]
            lines.append(Line(name, with_gaps_as_zero(points, width_ms) if is_rate else points))
        return line_chart(lines, unit, width_ms)

    yield _section("Messages per second", chart(lambda row: row.messages / width_s, number_text, is_rate=True))
    yield _section("Bytes per second", chart(lambda row: row.bytes / width_s, bytes_text, is_rate=True))
    yield _section("Size, median", chart(lambda row: row.size_p50, bytes_text, is_rate=False))
    yield _section("Size, 99th percentile", chart(lambda row: row.size_p99, bytes_text, is_rate=False))


# Subscriptions.


def _subscription_table(figures: Figures) -> str:
    heads = ("Topic", "Subscriber", "Not acked", "The oldest waits for")
    if not figures.subscriptions:
        return _section("Lag now", '<p class="none">Nobody is subscribed.</p>', wide=True)
    rows = (
        (row.topic, row.subscriber, f"{row.lag:,}", "" if row.oldest_s is None else seconds_text(row.oldest_s))
        for row in figures.subscriptions
    )
    return _section("Lag now", _table(heads, rows), wide=True)


# What clients recorded.


def _recorded(figures: Figures) -> Iterable[str]:
    if not figures.latencies and not figures.lags:
        said = "Latency, and lag over time, need records: set ONCEMQ_RECORD=DIR for clients, and --records DIR here."
        yield _section("Latency", f"<p>{escape(said)}</p>", wide=True)
        return
    width_ms = figures.window_s * 1000
    titles = {PUT_LATENCY: "Latency of puts: sent → stored", DELIVERY_LATENCY: "Latency of delivery: stored → consumer"}
    for what, title in titles.items():
        rows = [row for row in figures.latencies if row.what == what]
        yield _section(title, line_chart(_latency_lines(rows), milliseconds_text, width_ms))
    by_name = groupby(figures.lags, key=lambda row: (row.topic, row.subscriber))
    lines = [
        Line(f"{topic} / {subscriber}", [(row.start_ms, row.lag) for row in rows])
        for (topic, subscriber), rows in by_name
    ]
    yield _section("Lag over time", line_chart(lines[:_LINES_MAX], number_text, width_ms))


def _latency_lines(rows: Sequence[LatencyFigures]) -> list[Line]:
    """Median and 99th percentile of each topic."""
    lines = []
    for topic, group in groupby(rows, key=lambda row: row.topic):
        points = list(group)
        lines.append(Line(f"{topic}, p50", [(row.start_ms, row.p50_ms) for row in points]))
        lines.append(Line(f"{topic}, p99", [(row.start_ms, row.p99_ms) for row in points]))
    return lines[:_LINES_MAX]


# Words.


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def number_text(value: float) -> str:
    """
    >>> number_text(0.5), number_text(1234), number_text(2_500_000)
    ('0.5', '1.23 k', '2.5 M')
    """
    for size, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{name}"
    return f"{value:.3g}"


def bytes_text(value: float) -> str:
    """
    >>> bytes_text(100), bytes_text(2_500_000)
    ('100 B', '2.5 MB')
    """
    text = number_text(value)
    return f"{text}B" if " " in text else f"{text} B"


def milliseconds_text(value: float) -> str:
    return seconds_text(value / 1000) if value >= 1000 else f"{value:.3g} ms"


def seconds_text(value: float) -> str:
    """
    >>> seconds_text(1.5), seconds_text(90), seconds_text(7200)
    ('1.5 s', '1.5 min', '2 h')
    """
    for size, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if value >= size:
            return f"{value / size:.3g} {name}"
    return f"{value:.3g} s"
