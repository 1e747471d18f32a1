"""Renders statistics as one HTML page that works offline, in light and dark mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import groupby

from oncemq import terminal
from oncemq.spark.stats.charts import Line, Point, fill_gaps, line_chart, time_text
from oncemq.spark.stats.latency import DELIVERY_LATENCY, PUT_LATENCY
from oncemq.spark.stats.model import LatencyWindow, Stats, TopicStats, WindowStats

#: The maximum number of lines in a chart. The busiest topics are shown.
_LINES_MAX = 8

#: The columns that contain text. The others are numbers, which are aligned to the right.
_TEXT_HEADS = ("Topic", "Subscriber", "Latency")

#: The kinds of latency, as text.
_LATENCIES = {PUT_LATENCY: "Put: sent → stored", DELIVERY_LATENCY: "Delivery: stored → consumer"}

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
th.text, td.text { text-align: left; } th { color: var(--soft); font-weight: 500; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--line); } polyline { fill: none; stroke-width: 1.6; stroke: currentColor; }
polyline.dashed { stroke-dasharray: 3 3; } circle { fill: currentColor; }
section > p { margin: 0; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; list-style: none; padding: 0; margin: 8px 0 0;
  color: var(--soft); font-size: 13px; }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px;
  background: currentColor; }
.swatch.dashed { background: repeating-linear-gradient(90deg, currentColor 0 2px, transparent 2px 4px); }
.line-0 { color: #2f7ed8; } .line-1 { color: #e0682f; } .line-2 { color: #2d9f6b; } .line-3 { color: #b455c6; }
.line-4 { color: #c9a227; } .line-5 { color: #d6455d; } .line-6 { color: #3fa7b8; } .line-7 { color: #8a7f72; }
"""


def render_page(stats: Stats) -> str:
    """Return an HTML document."""
    colours = _colours(stats)
    sections = [_topic_table(stats), *_topic_charts(stats, colours), _subscription_table(stats)]
    sections += _recorded(stats, colours)
    title = f"OnceMQ: {len(stats.topics)} topic{'' if len(stats.topics) == 1 else 's'}"
    created = time_text(stats.made_ms, 0)
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
<p>Broker {escape(stats.broker)}, created {created}, windows of {stats.window_s:g} s. All times are in UTC.</p>
<main>
{"".join(sections)}
</main>
</body>
</html>
"""


def _colours(stats: Stats) -> dict[str, int]:
    """The number of the colour of each topic, the same in all charts."""
    busiest = sorted(stats.topics, key=lambda topic: -topic.messages)
    names = [topic.topic for topic in busiest] + [row.topic for row in stats.latencies]
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _section(title: str, inside: str, *, wide: bool = False) -> str:
    return f"<section{' class=wide' if wide else ''}><h2>{escape(title)}</h2>{inside}</section>\n"


# Topics.


def _topic_table(stats: Stats) -> str:
    heads = ("Topic", "Messages", "Bytes", "Per second", "Size p50", "p99", "max", "Keys", "First", "Last")
    return _section("Topics", _table(heads, map(_topic_row, stats.topics)), wide=True)


def _topic_row(topic: TopicStats) -> tuple[str, ...]:
    sizes = (f"{size:,} B" for size in (topic.size_p50, topic.size_p99, topic.size_max))
    return (
        topic.topic,
        f"{topic.messages:,}",
        terminal.bytes_text(topic.bytes),
        rate_text(topic.per_s),
        *sizes,
        f"{topic.keys:,}",
        time_text(topic.first_ms, 0),
        time_text(topic.last_ms, 0),
    )


def _topic_charts(stats: Stats, colours: Mapping[str, int]) -> Iterable[str]:
    width_ms, width_s = stats.window_s * 1000, stats.window_s
    windows = {topic: list(rows) for topic, rows in groupby(stats.windows, key=lambda row: row.topic)}

    def chart(value: Callable[[WindowStats], float], unit: Callable[[float], str], *, is_rate: bool) -> str:
        lines = []
        for name in list(colours)[:_LINES_MAX]:
            points: list[Point] = [(row.start_ms, value(row)) for row in windows.get(name, [])]
            lines.append(Line(name, fill_gaps(points, width_ms, 0.0) if is_rate else points, colours[name]))
        return line_chart(lines, unit, width_ms)

    yield _section("Messages per second", chart(lambda row: row.messages / width_s, number_text, is_rate=True))
    yield _section("Bytes per second", chart(lambda row: row.bytes / width_s, bytes_text, is_rate=True))
    yield _section("Size, median", chart(lambda row: row.size_p50, bytes_text, is_rate=False))
    yield _section("Size, 99th percentile", chart(lambda row: row.size_p99, bytes_text, is_rate=False))


# Subscriptions.


def _subscription_table(stats: Stats) -> str:
    heads = ("Topic", "Subscriber", "Not acked", "Age of the oldest")
    if not stats.subscriptions:
        return _section("Current lag", '<p class="none">There are no subscriptions.</p>', wide=True)
    rows = (
        (row.topic, row.subscriber, f"{row.lag:,}", "" if row.oldest_s is None else seconds_text(row.oldest_s))
        for row in stats.subscriptions
    )
    return _section("Current lag", _table(heads, rows), wide=True)


# Client records.


def _recorded(stats: Stats, colours: Mapping[str, int]) -> Iterable[str]:
    if not stats.latencies and not stats.lags:
        text = (
            "Latency and lag over time need client records: set ONCEMQ_RECORD=DIR for clients, and use --records DIR."
        )
        yield _section("Latency", f"<p>{escape(text)}</p>", wide=True)
        return
    yield _latency_table(stats)
    width_ms = stats.window_s * 1000
    for what, title in _LATENCIES.items():
        rows = [row for row in stats.latency_windows if row.what == what]
        yield _section(title, line_chart(_latency_lines(rows, colours), milliseconds_text, width_ms))
    by_name = groupby(stats.lags, key=lambda row: (row.topic, row.subscriber))
    lines = [
        Line(f"{topic} / {subscriber}", fill_gaps([(row.start_ms, row.lag) for row in rows], width_ms, None))
        for (topic, subscriber), rows in by_name
    ]
    yield _section("Lag over time", line_chart(lines[:_LINES_MAX], number_text, width_ms))


def _latency_table(stats: Stats) -> str:
    heads = ("Topic", "Latency", "Messages", "p50", "p99", "max")
    rows = (
        (
            row.topic,
            _LATENCIES[row.what],
            f"{row.messages:,}",
            *map(milliseconds_text, (row.p50_ms, row.p99_ms, row.max_ms)),
        )
        for row in stats.latencies
    )
    return _section("Latency", _table(heads, rows), wide=True)


def _latency_lines(rows: Sequence[LatencyWindow], colours: Mapping[str, int]) -> list[Line]:
    """The median and the 99th percentile of each topic, in its colour."""
    lines = []
    for topic, group in groupby(rows, key=lambda row: row.topic):
        points, colour = list(group), colours[topic]
        lines.append(Line(f"{topic}, p50", [(row.start_ms, row.p50_ms) for row in points], colour, is_dashed=True))
        lines.append(Line(f"{topic}, p99", [(row.start_ms, row.p99_ms) for row in points], colour))
    return lines[:_LINES_MAX]


# Tables and numbers.


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = _cells("th", heads, heads)
    body = "".join(f"<tr>{_cells('td', heads, row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(tag: str, heads: Sequence[str], texts: Sequence[str]) -> str:
    return "".join(
        f"<{tag}{' class=text' if head in _TEXT_HEADS else ''}>{escape(text)}</{tag}>"
        for head, text in zip(heads, texts, strict=True)
    )


def number_text(value: float) -> str:
    """
    >>> number_text(0.5), number_text(1234), number_text(2_500_000)
    ('0.5', '1.23 k', '2.5 M')
    """
    for size, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{name}"
    return f"{value:.3g}"


def rate_text(value: float) -> str:
    """
    >>> rate_text(1234.56), rate_text(2.0), rate_text(0.02)
    ('1,234.6', '2.0', '0.02')
    """
    return f"{value:,.1f}" if value >= 1 else f"{value:.2g}"


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
