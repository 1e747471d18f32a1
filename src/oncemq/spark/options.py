"""What `.option(…)` takes, checked before anything is read or written. Knows nothing of Spark."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import msgspec

from oncemq.config.durations import duration_s
from oncemq.protocol import errors
from oncemq.protocol.patterns import matches, refuse_pattern
from oncemq.spark.schema import NAMES

DEFAULT_URL = "tcp://127.0.0.1:5555"
#: How long a topic that the sink makes keeps its messages, where nobody says.
RETAIN = "7d"

#: Where a reading starts or ends on one topic: an offset, a moment in milliseconds since 1970, or a word.
EARLIEST = "earliest"
LATEST = "latest"


class Moment(msgspec.Struct, frozen=True, gc=False):
    """The first message that was stored at this time or later."""

    time_ms: int


Place = int | str | Moment


class Places(msgspec.Struct, frozen=True):
    """Where to start or end, on every topic or on some of them."""

    everywhere: Place
    by_topic: Mapping[str, Place] = {}

    def on(self, topic: str) -> Place:
        return self.by_topic.get(topic, self.everywhere)


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    #: Either some topics or a pattern.
    topics: tuple[str, ...] = ()
    pattern: str = ""
    subscription: str = ""
    start: Places
    end: Places
    #: Messages of one micro-batch; 0 = as many as there are.
    rows_max: int = 0
    #: Tasks that read in parallel; 0 = one per core of the driver.
    partitions: int = 0
    fail_on_loss: bool = True
    columns: tuple[str, ...] = NAMES
    timeout_s: float = 30.0


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    #: "" = the rows' column `topic` says it.
    topic: str = ""
    create: bool = False
    #: How long a topic that is made here keeps its messages: it has no subscribers yet.
    retain_ms: int = 0
    #: The rows' time stamps are stored with them.
    keeps_times: bool = False
    write_id: str = ""
    write_number: int = 0
    timeout_s: float = 30.0


_SHARED = ("url", "timeout")
_SOURCE = (
    *_SHARED,
    "topic",
    "topics",
    "pattern",
    "subscription",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "partitions",
    "failOnDataLoss",
    "columns",
)
_SINK = (*_SHARED, "topic", "create", "retain", "timestamps", "writeId", "writeNumber")


def source_options(raw: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
    """Raises SettingInvalid, with what to write instead."""
    options = _Given(raw, _SOURCE)
    topics, pattern = _topics(options)
    subscription = options.text("subscription")
    if is_stream and not subscription:
        raise errors.SettingInvalid(
            "a stream needs the option 'subscription': the name of the durable subscription that keeps for it what "
            'its checkpoint still needs, e.g. .option("subscription", "my-query")'
        )
    if is_stream and "endingOffsets" in options:
        raise errors.SettingInvalid("'endingOffsets' is for batch reads; a stream has no end")
    start = _places(options, "startingOffsets", LATEST if is_stream else EARLIEST)
    if is_stream and pattern and start not in (Places(LATEST), Places(EARLIEST)):
        raise errors.SettingInvalid("with a pattern, 'startingOffsets' of a stream is 'earliest' or 'latest'")
    end = _places(options, "endingOffsets", LATEST)
    for option, places in (("startingOffsets", start), ("endingOffsets", end)):
        _refuse_strangers(option, places, topics, pattern)
    return SourceOptions(
        url=broker_url(options.text("url")),
        topics=topics,
        pattern=pattern,
        subscription=subscription,
        start=start,
        end=end,
        rows_max=options.number("maxOffsetsPerTrigger"),
        partitions=options.number("partitions"),
        fail_on_loss=options.flag("failOnDataLoss", True),
        columns=_columns(options),
        timeout_s=options.seconds("timeout", 30.0),
    )


def sink_options(raw: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Raises SettingInvalid, with what to write instead."""
    options = _Given(raw, _SINK)
    write_id = options.text("writeId")
    if is_stream and write_id:
        raise errors.SettingInvalid(
            "'writeId' is for batch writes; a stream is recognised by its checkpoint, which knows more"
        )
    if "writeNumber" in options and not write_id:
        raise errors.SettingInvalid("'writeNumber' counts the writes of a 'writeId', which is missing")
    create = options.flag("create", False)
    if "retain" in options and not create:
        raise errors.SettingInvalid("'retain' is for topics that create=true makes")
    times = options.text("timestamps") or "broker"
    if times not in ("broker", "keep"):
        raise errors.SettingInvalid(f"'timestamps' is 'broker' or 'keep', not {times!r}")
    return SinkOptions(
        url=broker_url(options.text("url")),
        topic=options.text("topic"),
        create=create,
        retain_ms=_retain_ms(options),
        keeps_times=times == "keep",
        write_id=write_id,
        write_number=options.number("writeNumber"),
        timeout_s=options.seconds("timeout", 30.0),
    )


def _retain_ms(options: _Given) -> int:
    text = options.text("retain") or RETAIN
    span_s = duration_s(text)
    if not span_s:
        raise errors.SettingInvalid(f"'retain' is a span of time, such as 12h or {RETAIN}, not {text!r}")
    return round(span_s * 1000)


def broker_url(url: str) -> str:
    """Raises SettingInvalid for a broker that only its own process can reach."""
    url = url or os.environ.get("ONCEMQ_URL", "") or DEFAULT_URL
    for part in url.split(","):
        if part.strip().startswith(("file:", "memory:")):
            raise errors.SettingInvalid(
                f"Spark's workers are processes of their own and can't reach '{part.strip()}', a broker inside of one "
                "process; start one with `oncemq serve` (--data takes the folder) and use its tcp:// address"
            )
    return url


class _Given:
    """The options as they were given. Spark does not care about capitals."""

    def __init__(self, raw: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._raw = {name.lower(): value for name, value in raw.items()}
        self._refuse_slips(known)
        #: Not ours; Spark's own, or a mistake.
        self.strange = sorted(self._raw.keys() - {name.lower() for name in known})

    def _refuse_slips(self, known: tuple[str, ...]) -> None:
        """Spark has options of its own, so a name that is not ours is no mistake, unless it is nearly ours."""
        by_lower = {name.lower(): name for name in known}
        for name in self._raw:
            if name not in by_lower:
                close = difflib.get_close_matches(name, by_lower, n=1, cutoff=0.85)
                if close:
                    raise errors.SettingInvalid(f"there is no option '{name}'; did you mean '{by_lower[close[0]]}'?")

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._raw

    def text(self, name: str) -> str:
        return self._raw.get(name.lower(), "")

    def number(self, name: str) -> int:
        text = self.text(name) or "0"
        try:
            number = int(text)
        except ValueError:
            number = -1
        if number < 0:
            raise errors.SettingInvalid(f"'{name}' is a whole number from 0 on, not {text!r}")
        return number

    def seconds(self, name: str, default: float) -> float:
        text = self.text(name)
        try:
            seconds = float(text) if text else default
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            raise errors.SettingInvalid(f"'{name}' is a number of seconds, not {text!r}")
        return seconds

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            raise errors.SettingInvalid(f"'{name}' is true or false, not {text!r}")
        return default if not text else text == "true"


def _named(names: Sequence[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)


def _topics(options: _Given) -> tuple[tuple[str, ...], str]:
    given = [name for name in ("topic", "topics", "pattern") if options.text(name)]
    if len(given) != 1:
        what = _named(given) + " are given" if given else "none of them is given"
        if not given and options.strange:
            what += f"; of those that are, OnceMQ does not know {_named(options.strange)}"
        raise errors.SettingInvalid(f"one of the options 'topic', 'topics' and 'pattern' says what to read; {what}")
    text = options.text(given[0])
    if given[0] == "topic":
        return (text,), ""
    if given[0] == "topics":
        return tuple(dict.fromkeys(_names(text, "topics"))), ""
    refusal = refuse_pattern(text)
    if refusal is not None:
        raise errors.SettingInvalid(f"'pattern': {refusal.text}")
    return (), text


def _names(text: str, option: str) -> Iterator[str]:
    """A JSON list, or names with commas between."""
    names = _json(text, option) if text.lstrip().startswith("[") else text.split(",")
    if not isinstance(names, list) or not all(isinstance(name, str) and name.strip() for name in names):
        raise errors.SettingInvalid(f"'{option}' is a list of names, as in 'a,b' or [\"a\", \"b\"], not {text!r}")
    yield from (name.strip() for name in names)


def _columns(options: _Given) -> tuple[str, ...]:
    text = options.text("columns")
    chosen = tuple(_names(text, "columns")) if text else NAMES
    for name in chosen:
        if name not in NAMES:
            raise errors.SettingInvalid(f"'columns': there is no column '{name}'; there are {', '.join(NAMES)}")
    if len(set(chosen)) != len(chosen):
        raise errors.SettingInvalid("'columns' names a column twice")
    return chosen


def _places(options: _Given, option: str, default: str) -> Places:
    text = options.text(option).strip() or default
    if not text.startswith("{"):
        return Places(_place(text, option))
    by_topic = _json(text, option)
    assert isinstance(by_topic, dict)
    return Places(default, {topic: _place(place, f"{option} of '{topic}'") for topic, place in by_topic.items()})


def _refuse_strangers(option: str, places: Places, topics: tuple[str, ...], pattern: str) -> None:
    """A slip in a name would mean other messages than were asked for."""
    for topic in places.by_topic:
        if not (matches(pattern.split("."), topic) if pattern else topic in topics):
            raise errors.SettingInvalid(f"'{option}' names topic '{topic}', which is not read")


def _json(text: str, option: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise errors.SettingInvalid(f"'{option}' is no good JSON: {error}") from None


def _place(given: object, what: str) -> Place:
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    if given in (EARLIEST, LATEST):
        return str(given)
    if isinstance(given, str):
        if given.isdecimal():
            return int(given)
        moment = _moment(given)
        if moment is not None:
            return moment
    raise errors.SettingInvalid(
        f"{what}: 'earliest', 'latest', an offset, or a time with its zone (2026-01-01T00:00:00Z), not {given!r}"
    )


def _moment(text: str) -> Moment | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    # Driver and user may be in different zones: a time without one could mean either.
    return None if moment.tzinfo is None else Moment(round(moment.timestamp() * 1000))
