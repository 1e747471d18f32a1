"""Types of parameters and fields that several endpoints use, with their bounds."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from oncemq.protocol.commands import START_EARLIEST, START_NEW
from oncemq.protocol.limits import LIST_PAGE_MAX, NAME_BYTES_MAX, TTL_MS_MAX, WAIT_MS_MAX

INTEGER_MAX = 2**63 - 1

S = TypeVar("S", bound=msgspec.Struct)


def _name(description: str, reserved: str = "") -> Meta:
    # The pattern is only for the OpenAPI document: the broker itself refuses invalid names, with a better message.
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
Epoch = Annotated[
    int, Meta(ge=0, le=INTEGER_MAX, description="The epoch that POST …/open returned. 0: the gateway's own.")
]
TopicId = Annotated[
    int, Meta(ge=0, le=INTEGER_MAX, description="The topic must have this id. 0: the topic that has the name now.")
]
Start = Annotated[int, Meta(ge=0, le=INTEGER_MAX)] | Literal["new", "earliest"]
Moment = Annotated[int, Meta(ge=1, le=INTEGER_MAX)] | Annotated[datetime, Meta(tz=True)]

Limit = Annotated[int, Meta(ge=1, le=10_000, description="Maximum number of messages.")]
PageLimit = Annotated[int, Meta(ge=1, le=LIST_PAGE_MAX, description="Maximum number of entries.")]
BytesMax = Annotated[
    int, Meta(ge=1, le=8 * 2**20, description="Maximum number of bytes, as they are stored, beyond the first batch.")
]
WaitMs = Annotated[int, Meta(ge=0, le=WAIT_MS_MAX, description="How long to wait for new messages, in milliseconds.")]
TtlMs = Annotated[
    int,
    Meta(ge=0, le=TTL_MS_MAX, description="Messages expire after this time, in milliseconds; 0: they do not expire."),
]
DelayMs = Annotated[
    int, Meta(ge=0, le=TTL_MS_MAX, description="Messages become visible after this time, in milliseconds.")
]
DueMs = Annotated[
    int,
    Meta(
        ge=0,
        le=INTEGER_MAX,
        description="The time at which messages become visible, in milliseconds since 1970; 0: at once.",
    ),
]


class PageParameters(msgspec.Struct, frozen=True):
    """The parameters of a list that is returned in pages."""

    after: Annotated[str, Meta(description="List the names after this one, in their order.")] = ""
    limit: PageLimit = 100


def start_of(start: int | str) -> int:
    """Return a start as the protocol encodes it."""
    if isinstance(start, int):
        return start
    return START_NEW if start == "new" else START_EARLIEST


def struct_from(kind: type[S], source: object, **values: Any) -> S:
    """Return a struct with these values; all other fields are the attributes of `source` with the same names."""
    copied = {name: getattr(source, name) for name in kind.__struct_fields__ if name not in values}
    return kind(**copied, **values)


def milliseconds_of(moment: int | datetime) -> int:
    """Return a time in milliseconds since 1970."""
    return moment if isinstance(moment, int) else int(moment.timestamp() * 1000)
