"""`oncemq pipeline restore`: restores topics from an archive."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from oncemq.cli.pipeline.spark_command import SparkRun, explain_errors, find_broker, make_reporter, spark_options
from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented
from oncemq.cli.support.options import DURATION_MS, TOPIC, Reach, json_option, reaches_broker
from oncemq.cli.support.signals import orderly_exit
from oncemq.terminal import count_of, json_line, note, printable, warn

if TYPE_CHECKING:
    from oncemq.spark.lake.restorer import Restored

    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType


class IsoTime(ParamType):
    """A time in ISO 8601. Relative times are not allowed, because a repeated command would select other messages."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return datetime.fromisoformat(value).astimezone()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time, such as 2026-01-31T12:00:00Z.", param, ctx)


class ArchiveFolder(click.Path):
    """An existing folder, or a URL in an object store."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from oncemq.spark.targets.objects.location import is_object_url

        return value if is_object_url(str(value)) else super().convert(value, param, ctx)


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
    type=ArchiveFolder(exists=True, file_okay=False),
    help="The folder of the archive; also in an object store (s3://...).",
)
@click.option("--to", metavar="TOPIC", type=TOPIC, default="", help="The topic that gets the messages.")
@click.option(
    "--prefix",
    metavar="TEXT",
    default="",
    help="Without --to: restore each topic into a topic whose name is this prefix and its own name.",
)
@click.option("--topic", metavar="TOPIC", default="", help="Restore only this topic of the archive.")
@click.option("--since", type=IsoTime(), metavar="TIME", help="Restore only messages from this time on.")
@click.option("--until", type=IsoTime(), metavar="TIME", help="Restore only messages before this time.")
@click.option(
    "--offsets", metavar="A:B", default="", help="Restore only these offsets of the archived topic, excluding B."
)
@click.option("--id", metavar="NAME", default="", help="The id by which a repeated restore is recognised.")
@click.option("--again", is_flag=True, help="Restore the messages once more, even if they were restored before.")
@click.option("--create", is_flag=True, help="Create missing topics.")
@click.option(
    "--retain",
    "retain_ms",
    type=DURATION_MS,
    metavar="TIME",
    help="The retention of created topics. [default: 7d]",
)
@spark_options
@json_option
@reaches_broker
def restore(
    folder: str,
    retain_ms: int | None,
    spark: SparkRun,
    as_json: bool,
    reach: Reach,
    **given: Any,
) -> None:
    """Restore archived messages into topics, each message once.

    Keys, headers, time stamps and order are preserved; the offsets are new. The messages of a topic appear together,
    when all of them are restored. Repeating the command changes nothing, so it can be repeated after a crash: a
    restore is recognised by the folder, the selection and the topic. Use --again or another --id to restore the
    messages once more.

    The archive is checked first: a message that it contains twice is an error, and missing messages are counted in a
    warning. With --json, an object is printed for each topic, with `messages`, `first_offset` and `last_offset`.
    """
    with explain_errors(spark.has_traceback):
        from oncemq.spark.lake import restorer

        if retain_ms is not None and not given["create"]:
            raise click.UsageError("--retain needs --create: it is the retention of created topics.")
        if given["again"] and not given["id"]:
            given |= {"again": False, "id": f"again-{uuid.uuid4().hex}"}
            note(f"If this is interrupted, use --id {given['id']} instead of --again to complete it.")
        with orderly_exit():
            done = restorer.restore(
                folder,
                **find_broker(reach).arguments,
                master=spark.master,
                conf=spark.conf,
                retain_ms=restorer.RETAIN_MS if retain_ms is None else retain_ms,
                reporter=make_reporter(has_end=True, as_json=False, is_quiet=spark.quiet or as_json),
                warn=warn,
                **given,
            )
    for restored in done:
        if as_json:
            click.echo(json_line(restored))
        elif not spark.quiet:
            click.echo(printable(_summary(restored)))


def _summary(restored: Restored) -> str:
    messages = count_of(restored.messages, "message")
    if restored.before:
        return (
            f"This was restored into '{restored.target}' before, with the id {restored.id}: nothing changed. To "
            "restore newer messages of the archive, select them, or use --again."
        )
    if restored.first_offset is None:
        return f"Restored {messages} into '{restored.target}'. Other producers wrote to it at the same time."
    offsets = f"offsets {restored.first_offset:,} to {restored.last_offset:,}"
    return f"Restored {messages} into '{restored.target}' ({offsets})."
