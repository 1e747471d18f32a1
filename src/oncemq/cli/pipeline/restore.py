"""`oncemq pipeline restore`: out of a lake, back into topics."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from oncemq.cli.pipeline.spark_command import conf_of, explaining, reporter, runs_on_spark
from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented
from oncemq.cli.support.options import DURATION_MS, TOPIC, Reach, json_option, reaches_broker
from oncemq.cli.support.signals import orderly_exit
from oncemq.terminal import count_of, json_line, note, warn

if TYPE_CHECKING:
    from oncemq.spark.lake.restorer import Restored

    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType


class Moment(ParamType):
    """A time as ISO 8601 has it. Not one relative to now: a second run would mean other messages."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return datetime.fromisoformat(value).astimezone()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time, such as 2026-01-31T12:00:00Z.", param, ctx)


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 1, 5, 143),
    advice=READ_ONLY_ADVICE,
    examples="""
        oncemq pipeline restore --from /lake/orders --to orders-again --create
        oncemq pipeline restore --from /lake/trade --prefix restored. --create --retain 30d
        oncemq pipeline restore --from /lake/trade --topic orders --to orders --offsets 1000:2000
        oncemq pipeline restore --from /lake/orders --to may --since 2026-05-01T00:00Z --until 2026-06-01T00:00Z
    """,
)
@click.option(
    "--from",
    "folder",
    metavar="DIR",
    required=True,
    type=click.Path(exists=True, file_okay=False),
    help="The folder of the archive.",
)
@click.option("--to", metavar="TOPIC", type=TOPIC, default="", help="The topic that gets the messages.")
@click.option(
    "--prefix",
    metavar="TEXT",
    default="",
    help="Without --to: each topic's messages go into the topic of its name behind this.",
)
@click.option("--topic", metavar="TOPIC", default="", help="Only this one of the archive's topics.")
@click.option("--since", type=Moment(), metavar="TIME", help="Only messages of this time or later.")
@click.option("--until", type=Moment(), metavar="TIME", help="Only messages before this time.")
@click.option("--offsets", metavar="A:B", default="", help="Only these offsets of the archived topic, without B.")
@click.option("--id", metavar="NAME", default="", help="What this restore is recognised by, when it comes again.")
@click.option("--again", is_flag=True, help="Restore once more what was restored before.")
@click.option("--create", is_flag=True, help="Make topics that are not there.")
@click.option(
    "--retain",
    "retain_ms",
    type=DURATION_MS,
    metavar="TIME",
    help="Of topics that are made: how long they keep messages. [default: 7d]",
)
@runs_on_spark
@json_option
@reaches_broker
def restore(
    folder: str,
    retain_ms: int | None,
    pairs: tuple[str, ...],
    quiet: bool,
    has_traceback: bool,
    as_json: bool,
    reach: Reach,
    **given: Any,
) -> None:
    """Put archived messages back into topics, each message once.

    Keys, headers, time stamps and order stay; the offsets are new. The messages of a topic appear all at once, when
    the last one is there. The same command again changes nothing, so that it can be repeated after a crash: it is
    recognised by the folder, the selection and the topic. --again, or another --id, really does it twice.

    The archive is checked before: a message that it holds twice is an error, messages that it does not hold are
    counted in a warning. With --json, an object per topic, with `messages`, `first_offset` and `last_offset`.
    """
    with explaining(has_traceback):
        from oncemq.config import sources
        from oncemq.spark.lake import restorer

        conf = conf_of(pairs)
        if retain_ms is not None and not given["create"]:
            raise click.UsageError("--retain is about topics that --create makes.")
        if given["again"] and not given["id"]:
            given |= {"again": False, "id": f"again-{uuid.uuid4().hex}"}
            note(f"If this is cut off, --id {given['id']} instead of --again finishes it.")
        with orderly_exit():
            done = restorer.restore(
                folder,
                url=sources.load_client(reach).url,
                conf=conf,
                retain_ms=restorer.RETAIN_MS if retain_ms is None else retain_ms,
                reporter=reporter(has_end=True, as_json=False, is_quiet=quiet or as_json),
                warn=warn,
                **given,
            )
    for one in done:
        if as_json:
            click.echo(json_line(one))
        elif not quiet:
            click.echo(_sentence(one))


def _sentence(one: Restored) -> str:
    messages = count_of(one.messages, "message")
    if one.before:
        return (
            f"This was restored into '{one.target}' before, by the id {one.id}: nothing changed. What the archive got "
            "since needs a selection of its own, or see --again."
        )
    if one.first_offset is None:
        return f"Restored {messages} into '{one.target}', to which others wrote at the same time."
    return f"Restored {messages} into '{one.target}' (offsets {one.first_offset:,} to {one.last_offset:,})."
