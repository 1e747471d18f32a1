"""`oncemq pipeline stats`: rates, sizes, lag and latency of topics, as a table, as JSON, or as an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from oncemq.cli.pipeline.spark_command import find_broker, master_option, require_broker, spark_session
from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented
from oncemq.cli.support.options import DURATION, Reach, json_option, moment_of, reaches_broker
from oncemq.terminal import bytes_text, json_line, note, table

if TYPE_CHECKING:
    from datetime import datetime

    from oncemq.spark.stats.model import Stats
    from oncemq.spark.stats.selection import StatsSelection


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 5, 143),
    advice=READ_ONLY_ADVICE,
    examples="""
        oncemq pipeline stats orders --to orders.html
        oncemq pipeline stats "#" --since -24h --window 10m --to yesterday.html
        oncemq pipeline stats orders bills --records ./records --json
    """,
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--to", "path", metavar="FILE", type=click.Path(dir_okay=False), help="Write an HTML page with charts.")
@click.option("--window", metavar="TIME", type=DURATION, help="The length of a window. [default: about 60 windows]")
@click.option("--since", metavar="TIME", help="Only messages from this time on: 2026-01-31T12:00, -2h.")
@click.option("--until", metavar="TIME", help="Only messages before this time.")
@click.option(
    "--records",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False),
    help="A folder of client records (ONCEMQ_RECORD), for latency and for lag over time.",
)
@master_option
@json_option
@reaches_broker
def stats(
    topics: tuple[str, ...],
    path: str | None,
    window: float | None,
    since: str | None,
    until: str | None,
    records: str | None,
    master: str,
    as_json: bool,
    reach: Reach,
) -> None:
    """Show rates, sizes, lag and latency per topic and time window.

    TOPIC may be a pattern in quotes: "orders.*", or "#" for all topics. Only stored messages are counted; topics with
    a retention store more. Percentiles are exact. The HTML page works offline.

    Latency needs client records, which docs/audit.md describes. Its figures include recorded messages that the broker
    no longer stores, and --since and --until apply to the times of their confirmations.
    """
    selection = _selection(topics, since, until)
    broker = find_broker(reach)
    require_broker(reach, broker)
    with spark_session("stats", master) as spark:
        from oncemq.spark.stats import collect_stats

        found = collect_stats(spark, broker, selection, window_s=window, records=records)
    if path is not None:
        from oncemq.spark.stats import render_page

        Path(path).write_text(render_page(found), encoding="utf-8")
        note(f"Wrote {path}.")
    if as_json:
        click.echo(json_line(found))
        return
    _show(found)


def _selection(topics: tuple[str, ...], since: str | None, until: str | None) -> StatsSelection:
    from oncemq.protocol.patterns import is_pattern
    from oncemq.spark.stats.selection import StatsSelection

    patterns = [topic for topic in topics if is_pattern(topic)]
    if patterns and len(topics) > 1:
        raise click.BadParameter("give either one pattern, or topics by their names.", param_hint="TOPIC")
    start, end = _moment(since, "--since"), _moment(until, "--until")
    if start is not None and end is not None and start >= end:
        raise click.BadParameter("it is not after --since, so nothing is selected.", param_hint="--until")
    if patterns:
        return StatsSelection(pattern=topics[0], since=start, until=end)
    return StatsSelection(topics=topics, since=start, until=end)


def _moment(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    time = moment_of(text)
    if time is None:
        raise click.BadParameter(f"{text!r} is not a time, such as 2026-01-31T12:00 or -2h.", param_hint=option)
    return time


def _show(stats: Stats) -> None:
    from oncemq.spark.stats.report import rate_text

    heads = ("TOPIC", "MESSAGES", "BYTES", "PER S", "SIZE P50", "P99", "MAX")
    rows = [
        (one.topic, one.messages, bytes_text(one.bytes), rate_text(one.per_s), one.size_p50, one.size_p99, one.size_max)
        for one in stats.topics
    ]
    for line in table(heads, rows):
        click.echo(line)
    if not stats.topics:
        click.echo("No messages are stored in these topics.")
    for what in dict.fromkeys(row.what for row in stats.latencies):
        click.echo()
        for line in table((f"LATENCY: {what.upper()}", "MESSAGES", "P50", "P99", "MAX"), _latencies(stats, what)):
            click.echo(line)
    if stats.subscriptions:
        click.echo()
        for line in table(
            ("TOPIC", "SUBSCRIBER", "LAG"), [(row.topic, row.subscriber, row.lag) for row in stats.subscriptions]
        ):
            click.echo(line)


def _latencies(stats: Stats, what: str) -> list[tuple[str, int, str, str, str]]:
    return [
        (row.topic, row.messages, f"{row.p50_ms:,} ms", f"{row.p99_ms:,} ms", f"{row.max_ms:,} ms")
        for row in stats.latencies
        if row.what == what
    ]
