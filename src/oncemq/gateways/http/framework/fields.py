"""Types of parameters and members that several endpoints have: what they hold, and their bounds."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta

from oncemq.protocol.commands import START_EARLIEST, START_NEW
from oncemq.protocol.limits import LIST_PAGE_MAX, NAME_BYTES_MAX, TTL_MS_MAX, WAIT_MS_MAX

INTEGER_MAX = 2**63 - 1


def _name(description: str, reserved: str = "") -> Meta:
    # The pattern is for the document: the broker itself refuses names, and says better why.
    pattern = rf"^[^\u0000-\u001f\u007f-\u009f{reserved}]*$"
    return Meta(
        description=description, min_length=1, max_length=NAME_BYTES_MAX, extra_json_schema={"pattern": pattern}
    )


TopicName = Annotated[str, _name("The topic's name.", reserved="*#")]
TopicOrPattern = Annotated[str, _name("The topic's name, or a pattern (`*`, `#`) of names.")]
SubscriberName = Annotated[str, _name("The subscriber's name.")]
SessionName = Annotated[str, _name("The session's name.")]

Offset = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
Id = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
Epoch = Annotated[int, Meta(ge=0, le=INTEGER_MAX, description="As POST …/open gave it. 0: the gateway's own.")]
TopicId = Annotated[
    int, Meta(ge=0, le=INTEGER_MAX, description="The topic must have this id. 0: of the topic that has the name.")
]
Start = Annotated[int, Meta(ge=0, le=INTEGER_MAX)] | Literal["new", "earliest"]
Moment = Annotated[int, Meta(ge=1, le=INTEGER_MAX)] | Annotated[datetime, Meta(tz=True)]

Limit = Annotated[int, Meta(ge=1, le=10_000, description="So many messages at the most.")]
PageLimit = Annotated[int, Meta(ge=1, le=LIST_PAGE_MAX, description="So many at the most.")]
BytesMax = Annotated[
    int, Meta(ge=1, le=8 * 2**20, description="So many bytes at the most, as they are stored, beyond the first batch.")
]
WaitMs = Annotated[int, Meta(ge=0, le=WAIT_MS_MAX, description="Wait so long for something new.")]
TtlMs = Annotated[int, Meta(ge=0, le=TTL_MS_MAX, description="Messages expire after so long; 0: they don't.")]
DelayMs = Annotated[int, Meta(ge=0, le=TTL_MS_MAX, description="Messages become visible after so long.")]
DueMs = Annotated[
    int,
    Meta(ge=0, le=INTEGER_MAX, description="The same as a moment, in milliseconds since 1970; 0: at once."),
]


def start_of(start: int | str) -> int:
    """As the broker writes it."""
    if isinstance(start, int):
        return start
    return START_NEW if start == "new" else START_EARLIEST


def milliseconds_of(moment: int | datetime) -> int:
    return moment if isinstance(moment, int) else int(moment.timestamp() * 1000)
