"""`oncemq dead`: messages that were given up: look at them, send them back, throw them away."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from oncemq.cli.messages.formats import bytes_entry, time_text
from oncemq.cli.support.command import BROKER_EXITS, LOOKING_ADVICE, Documented, DocumentedGroup
from oncemq.cli.support.options import Name, Reach, connected, json_option, reaches_broker
from oncemq.cli.support.output import confirm, count_of, is_terminal, json_line, note, table

if TYPE_CHECKING:
    from oncemq import Client
    from oncemq.client.worker.dead_letters import DeadLetter

_VALUE_CHARACTERS = 40
_TAKE_MESSAGES = 1000
#: Letters that are looked through in one go.
_LETTERS_MAX = 1_000_000

_ADVICE = {"TOPIC_UNKNOWN": "`oncemq dead` lists the dead letters of all topics."}
_OFFSET_ADVICE = {**_ADVICE, "OFFSET_OUT_OF_RANGE": "`oncemq dead ls TOPIC` lists those that there are."}


def _dead_topics(client: Client) -> list[str]:
    from oncemq.client.worker.dead_letters import DEAD_SUBSCRIBER

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
    """List, retry and remove dead letters.

    Messages that workers have tried too often (`oncemq work --tries-max`) lie in a dead-letter topic until somebody
    looks after them. Alone, it lists them, as `oncemq dead ls` does.
    """


@dead.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 5),
    advice={**LOOKING_ADVICE, **_ADVICE},
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
    """List dead letters: what they were, and why they are there."""
    with connected(reach) as client:
        if topic is not None:
            _check_topic(client, topic)
        names = _dead_topics(client) if topic is None else [topic]
        found = [letter for name in names for letter in client.dead_letters(name)]
    if as_json:
        for letter in found:
            click.echo(json_line(_entry(letter)))
        return
    if not found:
        note("There are no dead letters.")
        return
    heads = ["DEAD TOPIC", "OFFSET", "FROM", "SUBSCRIBER", "TRIES", "REASON", "WHEN", "VALUE"]
    for line in table(heads, [_cells(letter) for letter in found]):
        click.echo(line)


def _check_topic(client: Client, topic: str) -> None:
    """Raises TopicUnknown, and says which one may be meant."""
    from oncemq.client.worker.dead_letters import DEAD_SUBSCRIBER
    from oncemq.protocol.errors import TopicUnknown

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
        # As they are typed in for a retry.
        str(message.offset),
        f"{letter.topic}/{letter.offset}",
        letter.subscriber,
        letter.tries,
        letter.reason,
        time_text(message.timestamp_ms),
        _beginning(letter.value),
    )


def _beginning(value: bytes) -> str:
    """
    >>> _beginning(b"two\\nlines"), _beginning(b"x" * 50)[-3:]
    ('two\\\\nlines', 'xx…')
    """
    text = value[: 4 * _VALUE_CHARACTERS].decode(errors="replace")
    shown = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    return shown if len(shown) <= _VALUE_CHARACTERS else shown[: _VALUE_CHARACTERS - 1] + "…"


@dead.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 1, 5),
    advice=_OFFSET_ADVICE,
    examples="""
        oncemq dead retry orders.dead 3 4
        oncemq dead retry orders.dead --all --yes
    """,
)
@click.argument("topic", type=DEAD_TOPIC)
@click.argument("offsets", metavar="[OFFSET]...", nargs=-1, type=click.IntRange(min=0))
@click.option("--all", "is_all", is_flag=True, help="All that are there.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@json_option
@reaches_broker
def retry(topic: str, offsets: tuple[int, ...], is_all: bool, yes: bool, as_json: bool, reach: Reach) -> None:
    """Send dead letters back to the topics that they come from.

    OFFSET is that in the dead-letter topic. Each goes back once, whatever happens: it leaves the one topic and is
    stored in the other in one transaction.

    It is a new message there, and every subscription of the topic gets it, also those that had done it before. Where
    there are such, this names them, and asks if there is a terminal. So that nobody else gets them, let workers work
    on the letters where they are: `oncemq work orders.dead oncemq-dead -- COMMAND`.

    Exit code 1: some could not go back, for instance since their topic is gone.
    """
    # Not while asking: a person may take longer than a connection lasts.
    with connected(reach) as client:
        letters = _choose(client, topic, offsets, is_all)
        notes = _who_gets_them_too(client, letters)
    for text in notes:
        note(text)
    if notes and not yes and sys.stdin.isatty() and is_terminal():
        confirm(f"Send {count_of(len(letters), 'dead letter')} back?")
    chosen = [letter.message.offset for letter in letters]
    with connected(reach) as client:
        retried, failures = _retry(client, topic, chosen)
    for offset, failure in failures.items():
        note(f"offset {offset} stays: {failure}")
    if retried + len(failures) < len(chosen):
        note(f"{len(chosen) - retried - len(failures)} of them are with somebody else, or gone meanwhile.")
    if as_json:
        click.echo(json_line({"topic": topic, "retried": retried, "failed": sorted(failures)}))
    else:
        click.echo(f"Sent {count_of(retried, 'dead letter')} back.")
    if retried < len(chosen):
        click.get_current_context().exit(1)


def _who_gets_them_too(client: Client, letters: list[DeadLetter]) -> list[str]:
    """A note for each topic with subscriptions that did not give these letters up."""
    from oncemq.protocol.errors import TopicUnknown

    notes = []
    for topic in dict.fromkeys(letter.topic for letter in letters):
        givers = {letter.subscriber for letter in letters if letter.topic == topic}
        try:
            names = [entry.subscriber for entry in client.subscriptions(topic)]
        except TopicUnknown:
            # They stay, and are told of.
            continue
        if set(names) - givers or len(givers) > 1:
            have = f"{topic} has {count_of(len(names), 'subscription')}"
            notes.append(f"{have}, and each gets {_what(letters, topic)} anew: {', '.join(names)}.")
    return notes


def _what(letters: list[DeadLetter], topic: str) -> str:
    count = sum(letter.topic == topic for letter in letters)
    return "this message" if count == 1 else f"these {count:,} messages"


def _choose(client: Client, topic: str, offsets: tuple[int, ...], is_all: bool) -> list[DeadLetter]:
    """Letters that are there. Raises OffsetOutOfRange where one is not."""
    from oncemq.protocol.errors import OffsetOutOfRange

    if is_all == bool(offsets):
        raise click.UsageError("Name offsets, or say --all.")
    _check_topic(client, topic)
    there = {letter.message.offset: letter for letter in client.dead_letters(topic)}
    missing = sorted(set(offsets) - set(there))
    if missing:
        named = " or ".join(f"{offset}" for offset in missing)
        raise OffsetOutOfRange(f"{topic} has no dead letter at offset {named}")
    return list(there.values()) if is_all else [there[offset] for offset in dict.fromkeys(offsets)]


def _retry(client: Client, topic: str, offsets: list[int]) -> tuple[int, dict[int, str]]:
    """How many went back, and why the others did not. Together if possible, else one by one."""
    from oncemq.protocol.errors import Refused

    if not offsets:
        return 0, {}
    try:
        return client.retry_dead_letters(topic, offsets), {}
    except Refused:
        # Some may have gone; those that are left, are there.
        left = [letter.message.offset for letter in client.dead_letters(topic) if letter.message.offset in set(offsets)]
    retried, failures = len(offsets) - len(left), {}
    for offset in left:
        try:
            retried += client.retry_dead_letters(topic, [offset])
        except Refused as error:
            failures[offset] = error.text
    return retried, failures


@dead.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 1, 5),
    advice=_OFFSET_ADVICE,
    examples="""
        oncemq dead rm orders.dead 3 4
        oncemq dead rm orders.dead --all --yes
    """,
)
@click.argument("topic", type=DEAD_TOPIC)
@click.argument("offsets", metavar="[OFFSET]...", nargs=-1, type=click.IntRange(min=0))
@click.option("--all", "is_all", is_flag=True, help="All that are there.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@json_option
@reaches_broker
def rm(topic: str, offsets: tuple[int, ...], is_all: bool, yes: bool, as_json: bool, reach: Reach) -> None:
    """Throw dead letters away, for good."""
    # Not while asking: a person may take longer than a connection lasts.
    with connected(reach) as client:
        chosen = _choose(client, topic, offsets, is_all)
    if not yes and chosen:
        confirm(f"Throw {count_of(len(chosen), 'dead letter')} of {topic} away?")
    with connected(reach) as client:
        removed = _remove(client, topic, {letter.message.offset for letter in chosen})
    entry = {"topic": topic, "removed": removed}
    click.echo(json_line(entry) if as_json else f"Removed {count_of(removed, 'dead letter')}.")


def _remove(client: Client, topic: str, offsets: set[int]) -> int:
    """Take all, ack those; the others are given back when we leave."""
    from oncemq.client.worker.dead_letters import DEAD_SUBSCRIBER

    removed = 0
    with client.shared_subscription(topic, DEAD_SUBSCRIBER, unsettled_max=_LETTERS_MAX) as letters:
        while removed < len(offsets) and (tasks := letters.take_many(_TAKE_MESSAGES)):
            for task in tasks:
                if task.offset in offsets:
                    task.ack()
                    removed += 1
        letters.flush()
    return removed
