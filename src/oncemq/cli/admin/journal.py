"""`oncemq journal`: tools for the journal of a stopped broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from oncemq.cli.support.command import Documented, DocumentedGroup
from oncemq.cli.support.options import json_option, yes_option
from oncemq.terminal import bytes_text, confirm, count_of, is_terminal, json_line, note, printable, styled, warn

if TYPE_CHECKING:
    from oncemq.journal.files.check import Report

_EXITS = (0, 2, 9)
_SERVE_THE_REST = (
    "Restore the damaged files from a copy, if you have one, and check the disk. Do not cut: a broker serves the rest, "
    "and answers RECORD_CORRUPT for messages that can't be read."
)


class _Folder(click.Path):
    """A folder with a journal. For a database, the error names its own tools."""

    def __init__(self) -> None:
        super().__init__(exists=True, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).startswith(("postgresql:", "postgres:")):
            self.fail(
                "this command needs a journal in a folder. PostgreSQL verifies its own files (`pg_amcheck`, "
                "`pg_checksums`), and `oncemq journal copy` copies a journal from there into a folder.",
                param,
                ctx,
            )
        if "://" in str(value):
            # The URL is not shown, because it may contain a password.
            self.fail("this is a URL; the command needs a journal in a folder.", param, ctx)
        return super().convert(value, param, ctx)


_folder_argument = click.argument("folder", metavar="DIR", type=_Folder())


@click.group(
    cls=DocumentedGroup,
    exits=(*_EXITS, 1),
    examples="""
        oncemq journal check ./oncemq-data
        oncemq journal export ./oncemq-data saved.jsonl
        oncemq journal cut ./oncemq-data 1234567
        oncemq journal copy ./oncemq-data postgresql://oncemq@db/oncemq
    """,
)
def journal() -> None:
    """Check, export, cut and copy the journal of a stopped broker.

    A broker refuses to start if its journal is damaged. Make a copy of the data folder first. Then `check` names the
    damaged positions, `export` saves everything that can be read, and `cut` discards everything from a position on, so
    that the broker starts again.
    """


@journal.command(
    cls=Documented,
    exits=_EXITS,
    examples="""
        oncemq journal check ./oncemq-data
        oncemq journal check ./oncemq-data --json | jq .problems
    """,
)
@_folder_argument
@json_option
@click.pass_context
def check(ctx: click.Context, /, folder: str, as_json: bool) -> None:
    """Verify everything that a broker needs, without changing anything.

    It verifies every group and snapshot, recovers the state as a broker does, and reads every message that is still
    needed: not acked by all subscriptions, retained, delayed or staged. Exit code 9 means that something is damaged.
    With --json, `problems` lists the damage, `refusal` says why a broker would not start, `lost_messages` counts the
    messages that can't be read, and `last_groups` lists the positions of the last groups.
    """
    from oncemq.broker.offline.check import check as check_disk
    from oncemq.disk.os_disk import OsDisk
    from oncemq.protocol.errors import JournalCorrupt

    with _progress("Checking") as progress:
        report = check_disk(OsDisk(folder, read_only=True), progress)
    if as_json:
        click.echo(json_line(report))
    else:
        _print_report(report)
    if not report.is_good:
        if not as_json:
            note(JournalCorrupt.folder_advice if report.refusal else _SERVE_THE_REST)
        ctx.exit(JournalCorrupt.exit_code)


def _print_report(report: Report) -> None:
    counts = [count_of(report.segments, "segment"), count_of(report.groups, "group")]
    counts += [count_of(report.records, "record"), count_of(len(report.snapshots), "snapshot")]
    click.echo(f"{report.journal}: {', '.join(counts)}, {bytes_text(report.payload_bytes)} of messages.")
    for text in report.notes:
        click.echo(printable(f"note: {text}"))
    for problem in report.problems:
        position = f" (position {problem.position})" if problem.position else ""
        where = f"{problem.file} at byte {problem.byte}{position}"
        click.echo(styled("damaged: ", fg="red") + printable(f"{where}: {problem.what}"))
    if report.refusal:
        click.echo(styled("refused: ", fg="red") + printable(f"a broker does not start: {report.refusal}"))
    elif report.lost_messages:
        click.echo(f"A broker starts, and serves everything except {count_of(report.lost_messages, 'message')}.")
    elif report.problems:
        click.echo("A broker starts, and can read every message that is still needed.")
    else:
        click.echo("No damage found.")


@journal.command(
    cls=Documented,
    exits=(*_EXITS, 141),
    examples="""
        oncemq journal export ./oncemq-data saved.jsonl
        oncemq journal export ./oncemq-data - | gzip > saved.jsonl.gz
    """,
)
@_folder_argument
@click.argument("out", type=click.Path(dir_okay=False, allow_dash=True))
@json_option
def export(folder: str, out: str, as_json: bool) -> None:
    """Write everything that can be read to a file, as JSON lines.

    Each group is a line with its events, each record a line with its payload in base64. OUT must not exist; `-` is
    standard output.
    """
    from oncemq.disk.os_disk import OsDisk
    from oncemq.journal.files.export import export as export_disk

    with _progress("Exporting") as progress, _new_file(out) as file:
        found = export_disk(OsDisk(folder, read_only=True), file, _decode_events, progress, warn)
    if as_json:
        click.echo(json_line(found), err=out == "-")
        return
    saved = f", {found.saved_records:,} of them from damaged groups" if found.saved_records else ""
    records = count_of(found.records + found.saved_records, "record")
    note(f"Exported {count_of(found.groups, 'group')} and {records}{saved}.")


def _decode_events(raw: bytes) -> object:
    """Return events with the names of their fields, or the raw bytes if this version does not know them."""
    import msgspec

    from oncemq.engine.events import Event

    try:
        events = msgspec.msgpack.decode(raw, type=list[Event]) if raw else []
    except msgspec.MsgspecError:
        return raw
    return [{"event": type(event).__name__, **msgspec.structs.asdict(event)} for event in events]


@contextmanager
def _new_file(path: str) -> Iterator[BinaryIO]:
    """Create a file that only its owner can read, and that is on disk when the block ends; "-" is standard output."""
    if path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        file = open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115
    except OSError as error:
        raise click.BadParameter(f"{path} can't be written: {error.strerror}.", param_hint="OUT") from None
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        # An empty file would make the next attempt fail.
        if not os.path.getsize(path):
            os.remove(path)
        raise


@journal.command(
    cls=Documented,
    exits=(*_EXITS, 1),
    examples="""
        oncemq journal cut ./oncemq-data 1234567
        oncemq journal cut ./oncemq-data 1234567 --yes --json
    """,
)
@_folder_argument
@click.argument("position", type=click.IntRange(min=0))
@click.option(
    "--accept-loss",
    "accepts_loss",
    is_flag=True,
    help="Cut even if messages before the position can't be read any more.",
)
@yes_option
@json_option
def cut(folder: str, position: int, accepts_loss: bool, yes: bool, as_json: bool) -> None:
    """Discard the group at a position and everything after it.

    `oncemq journal check` names the positions of damaged groups, `check --json` also those of the last good ones
    (`last_groups`), and `export` those of all groups. The broker loses the messages and acks after the position,
    although they were acknowledged; their bytes are kept in the folder `cut` of the data folder. Make a copy of the
    data folder first.

    The cut is tried in memory first. It is refused if a broker could not start afterwards. It is also refused if
    messages before the position can't be read, for example because their segment was recycled after all consumers had
    acked them: the acks are lost with the cut, and the messages are gone. The error names the positions that are
    possible.
    """
    from oncemq.broker.offline.cut import cut as cut_disk
    from oncemq.disk.os_disk import OsDisk

    if not yes:
        confirm(f"Discard everything from position {position} on, acknowledged or not?")
    with _progress("Cutting") as progress:
        found = cut_disk(OsDisk(folder), position, progress, accepts_loss=accepts_loss)
    if as_json:
        click.echo(json_line(found))
        return
    discarded = [
        count_of(found.groups, "group"),
        count_of(found.segments, "segment"),
        count_of(found.snapshots, "snapshot"),
    ]
    click.echo(f"Discarded {', '.join(discarded)}. The bytes are kept in:")
    for path in found.saved:
        click.echo(f"  {folder}/{path}")


@journal.command(
    cls=Documented,
    exits=_EXITS,
    examples="""
        oncemq journal copy ./oncemq-data postgresql://oncemq@db/oncemq
        oncemq journal copy postgresql://oncemq@db/oncemq ./oncemq-data
        oncemq journal copy ./oncemq-data /mnt/large/oncemq-data --json
    """,
)
@click.argument("source")
@click.argument("target")
@json_option
def copy(source: str, target: str, as_json: bool) -> None:
    """Copy a journal from files to PostgreSQL, or back, or to another folder.

    SOURCE and TARGET are folders (`file:DIR`, or DIR) or `postgresql://…`. Messages, positions, sessions and all ids
    are copied: clients continue without a change. TARGET must not contain a journal. SOURCE is not changed, so that you
    can go back to it; never serve both. An incomplete copy can't be served: copy again.
    """
    for location in (source, target):
        _check_scheme(location)

    from oncemq.broker.offline.copy import copy as copy_journal

    with _progress("Copying") as progress:
        copied = copy_journal(source, target, progress)
    if as_json:
        click.echo(json_line(copied))
        return
    counts = [count_of(copied.topics, "topic"), count_of(copied.subscriptions, "subscription")]
    counts += [count_of(copied.sessions, "session"), count_of(copied.records, "record")]
    click.echo(f"Copied {', '.join(counts)}, {bytes_text(copied.record_bytes)} of messages.")
    note(f"{copied.source} is unchanged. Serve {copied.target} from now on, never both.")


def _check_scheme(location: str) -> None:
    from oncemq.protocol.errors import SettingInvalid

    if "://" in location and not location.startswith(("file:", "postgresql://", "postgres://")):
        scheme = location.partition("://")[0]
        raise SettingInvalid(f"{scheme}:// can't hold a journal; use DIR or postgresql://…")


@contextmanager
def _progress(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar, if there is a terminal."""
    if not is_terminal():
        yield None
        return
    with click.progressbar(length=1, label=label, file=sys.stderr) as bar:

        def show(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield show
        bar.update((bar.length or 1) - bar.pos)
