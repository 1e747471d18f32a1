"""`oncemq dead`: list, retry and delete dead letters."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from oncemq.cli.messages.formats import bytes_entry, time_text
from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented, DocumentedGroup
from oncemq.cli.support.options import (
    Function,
    Name,
    Reach,
    connected,
    json_option,
    print_list,
    reaches_broker,
    yes_option,
)
from oncemq.terminal import confirm, count_of, is_terminal, json_line, note, printable, table

if TYPE_CHECKING:
    from oncemq import Client
    from oncemq.client.worker.dead_letters import DeadLetter

_VALUE_CHARACTERS = 40
_TAKE_MESSAGES = 1000
#: Maximum number of letters that one run takes.
_LETTERS_MAX = 1_000_000

_ADVICE = {"TOPIC_UNKNOWN": "`oncemq dead` lists the dead letters of all topics."}
_OFFSET_ADVICE = {**_ADVICE, "OFFSET_OUT_OF_RANGE": "`oncemq dead ls TOPIC` lists the dead letters."}


def _dead_topics(client: Client) -> list[str]:
    from oncemq.protocol.names import DEAD_SUBSCRIBER

    return [entry.topic for entry in client.subscriptions() if entry.subscriber == DEAD_SUBSCRIBER]


DEAD_TOPIC = Name("topic", lambda client, _: _dead_topics(client))


@click.group(
    cls=DocumentedGroup,
    exits=(*BROKER_EXITS, 5),
    examples="""
        oncemq dead
        oncemq dead retry orders.dead --all
        oncemq dead rm orders.dead 3 4
    """,
)
def dead() -> None:
    """List, retry and delete dead letters.

    Messages that have reached their maximum number of deliveries (`oncemq work --tries-max`) are kept in a dead-letter
    topic until they are retried or deleted. Without a subcommand, it lists them, as `oncemq dead ls` does.
    """


@dead.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 5),
    advice={**READ_ONLY_ADVICE, **_ADVICE},
    examples="""
        oncemq dead ls
        oncemq dead ls orders.dead
        oncemq dead ls --json | jq 'select(.reason == "exit code 65") | .offset'
    """,
)
@click.argument("topic", type=DEAD_TOPIC, required=False)
@json_option
@reaches_broker
def ls(topic: str | None, as_json: bool, reach: Reach) -> None:
    """List dead letters with their origin and the reason."""
    with connected(reach) as client:
        if topic is not None:
            _check_topic(client, topic)
        names = _dead_topics(client) if topic is None else [topic]
        found = [letter for name in names for letter in client.dead_letters(name)]
    heads = ["DEAD TOPIC", "OFFSET", "FROM", "SUBSCRIBER", "TRIES", "REASON", "WHEN", "VALUE"]
    rows = map(_cells, found)
    print_list([*map(_entry, found)], as_json, "There are no dead letters.", lambda: table(heads, [*rows]))


def _check_topic(client: Client, topic: str) -> None:
    """Raise TopicUnknown if it is not a dead-letter topic, and name the one that may be meant."""
    from oncemq.protocol.errors import TopicUnknown
    from oncemq.protocol.names import DEAD_SUBSCRIBER

    found = client.subscriptions(topic)
    if any(entry.subscriber == DEAD_SUBSCRIBER for entry in found):
        return
    named = sorted({entry.sharing.dead_topic for entry in found if entry.sharing and entry.sharing.dead_topic})
    meant = f"; the dead letters of its subscribers are in {' and '.join(named)}" if named else ""
    raise TopicUnknown(f"{topic} is not a dead-letter topic{meant}")


def _entry(letter: DeadLetter) -> dict[str, Any]:
    return {
        "dead_topic": letter.message.topic,
        "offset": letter.message.offset,
        "timestamp_ms": letter.message.timestamp_ms,
        "from_topic": letter.topic,
        "from_offset": letter.offset,
        "from_timestamp_ms": letter.timestamp_ms,
        "subscriber": letter.subscriber,
        "tries": letter.tries,
        "reason": letter.reason,
        **bytes_entry(letter.key, letter.headers, letter.value),
    }


def _cells(letter: DeadLetter) -> tuple[Any, ...]:
    message = letter.message
    return (
        message.topic,
        # Without thousands separators: this is what `retry` takes.
        str(message.offset),
        f"{letter.topic}/{letter.offset}",
        letter.subscriber,
        letter.tries,
        letter.reason,
        time_text(message.timestamp_ms),
        _shortened(letter.value),
    )


def _shortened(value: bytes) -> str:
    """
    >>> _shortened(b"two\\nlines"), _shortened(b"x" * 50)[-3:]
    ('two\\\\nlines', 'xx…')
    """
    text = value[: 4 * _VALUE_CHARACTERS].decode(errors="replace")
    shown = printable(text).replace("\n", "\\n").replace("\t", "\\t")
    return shown if len(shown) <= _VALUE_CHARACTERS else shown[: _VALUE_CHARACTERS - 1] + "…"


def _command(function: Function) -> click.Command:
    """Make a command that works on chosen dead letters: add its arguments and options, its exit codes and examples."""
    name = function.__name__
    for option in (
        reaches_broker,
        json_option,
        yes_option,
        click.option("--all", "is_all", is_flag=True, help="All dead letters of the topic."),
        click.argument("offsets", metavar="[OFFSET]...", nargs=-1, type=click.IntRange(min=0)),
        click.argument("topic", type=DEAD_TOPIC),
    ):
        function = option(function)
    examples = f"oncemq dead {name} orders.dead 3 4\noncemq dead {name} orders.dead --all --yes"
    exits = (*BROKER_EXITS, 1, 5)
    return dead.command(name, cls=Documented, exits=exits, advice=_OFFSET_ADVICE, examples=examples)(function)


@_command
def retry(topic: str, offsets: tuple[int, ...], is_all: bool, yes: bool, as_json: bool, reach: Reach) -> None:
    """Put dead letters back into their original topics.

    OFFSET is the offset in the dead-letter topic. Each message is put back exactly once: it is removed from the one
    topic and stored in the other in one transaction.

    It is a new message there, and every subscription of the topic gets it, also those that have already processed it.
    If there are such subscriptions, the command names them, and at a terminal asks for confirmation. To process dead
    letters without involving other subscriptions, let workers take them from the dead-letter topic: `oncemq work
    orders.dead oncemq-dead -- COMMAND`.

    Exit code 1 means that some could not be put back, for example because their topic was deleted.
    """
    # Not connected while asking: a person may take longer than a session lasts.
    with connected(reach) as client:
        letters = _choose(client, topic, offsets, is_all)
        notes = _other_receivers(client, letters)
    for text in notes:
        note(text)
    if notes and not yes and sys.stdin.isatty() and is_terminal():
        confirm(f"Put {count_of(len(letters), 'dead letter')} back?")
    chosen = [letter.message.offset for letter in letters]
    with connected(reach) as client:
        retried, failures = _retry(client, topic, chosen)
    for offset, failure in failures.items():
        note(f"offset {offset} was not put back: {failure}")
    if retried + len(failures) < len(chosen):
        note(f"{len(chosen) - retried - len(failures)} of them are held by another worker, or no longer exist.")
    if as_json:
        click.echo(json_line({"topic": topic, "retried": retried, "failed": sorted(failures)}))
    else:
        click.echo(f"Put {count_of(retried, 'dead letter')} back.")
    if retried < len(chosen):
        click.get_current_context().exit(1)


def _other_receivers(client: Client, letters: list[DeadLetter]) -> list[str]:
    """Return a note for each topic that has subscriptions other than those that rejected these letters."""
    from oncemq.protocol.errors import TopicUnknown

    notes = []
    for topic in dict.fromkeys(letter.topic for letter in letters):
        rejecters = {letter.subscriber for letter in letters if letter.topic == topic}
        try:
            names = [entry.subscriber for entry in client.subscriptions(topic)]
        except TopicUnknown:
            # These letters can't be put back; that is reported later.
            continue
        if set(names) - rejecters or len(rejecters) > 1:
            have = f"{topic} has {count_of(len(names), 'subscription')}"
            notes.append(f"{have}, and each gets {_what(letters, topic)} again: {', '.join(names)}.")
    return notes


def _what(letters: list[DeadLetter], topic: str) -> str:
    count = sum(letter.topic == topic for letter in letters)
    return "this message" if count == 1 else f"these {count:,} messages"


def _choose(client: Client, topic: str, offsets: tuple[int, ...], is_all: bool) -> list[DeadLetter]:
    """Return the letters to work on. Raises OffsetOutOfRange if one of them does not exist."""
    from oncemq.protocol.errors import OffsetOutOfRange

    if is_all == bool(offsets):
        raise click.UsageError("Give offsets or --all.")
    _check_topic(client, topic)
    existing = {letter.message.offset: letter for letter in client.dead_letters(topic)}
    missing = sorted(set(offsets) - set(existing))
    if missing:
        named = " or ".join(f"{offset}" for offset in missing)
        raise OffsetOutOfRange(f"{topic} has no dead letter at offset {named}")
    return list(existing.values()) if is_all else [existing[offset] for offset in dict.fromkeys(offsets)]


def _retry(client: Client, topic: str, offsets: list[int]) -> tuple[int, dict[int, str]]:
    """Put letters back, together if possible, otherwise one by one. Returns the number, and the failures by offset."""
    from oncemq.protocol.errors import Refused

    if not offsets:
        return 0, {}
    try:
        return client.retry_dead_letters(topic, offsets), {}
    except Refused:
        # Some may have been put back; continue with those that still exist.
        left = [letter.message.offset for letter in client.dead_letters(topic) if letter.message.offset in set(offsets)]
    retried, failures = len(offsets) - len(left), {}
    for offset in left:
        try:
            retried += client.retry_dead_letters(topic, [offset])
        except Refused as error:
            failures[offset] = error.text
    return retried, failures


@_command
def rm(topic: str, offsets: tuple[int, ...], is_all: bool, yes: bool, as_json: bool, reach: Reach) -> None:
    """Delete dead letters permanently."""
    # Not connected while asking: a person may take longer than a session lasts.
    with connected(reach) as client:
        chosen = _choose(client, topic, offsets, is_all)
    if not yes and chosen:
        confirm(f"Delete {count_of(len(chosen), 'dead letter')} of {topic}?")
    with connected(reach) as client:
        removed = _remove(client, topic, {letter.message.offset for letter in chosen})
    entry = {"topic": topic, "removed": removed}
    click.echo(json_line(entry) if as_json else f"Deleted {count_of(removed, 'dead letter')}.")


def _remove(client: Client, topic: str, offsets: set[int]) -> int:
    """Take all letters and ack those to delete; the others are returned when the subscription is closed."""
    from oncemq.protocol.names import DEAD_SUBSCRIBER

    removed = 0
    with client.shared_subscription(topic, DEAD_SUBSCRIBER, unsettled_max=_LETTERS_MAX) as letters:
        while removed < len(offsets) and (tasks := letters.take_many(_TAKE_MESSAGES)):
            for task in tasks:
                if task.offset in offsets:
                    task.ack()
                    removed += 1
        letters.flush()
    return removed
