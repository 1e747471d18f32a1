"""Filters: which messages a consumer wants. They run in the client. The other messages are acked without delivery."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from oncemq.client.producer.encoding import Value, as_bytes
from oncemq.protocol.message import Message

Filter = Callable[[Message], bool]
#: A function, or headers with the value (or one of the values) that each must have.
Wanted = Filter | Mapping[str, Value | Collection[Value]]


def filter_of(wanted: Wanted | None) -> Filter | None:
    """Return the filter as a function; None: no filter. Raises TypeError."""
    if wanted is None or not isinstance(wanted, Mapping):
        if wanted is not None and not callable(wanted):
            raise TypeError(f"a filter is a function or a mapping of headers, not {type(wanted).__name__}")
        return wanted
    accepted = {name: _values(values) for name, values in wanted.items()}

    def has_headers(message: Message) -> bool:
        headers = message.headers
        return all(headers.get(name) in values for name, values in accepted.items())

    return has_headers


def _values(values: Value | Collection[Value]) -> frozenset[bytes]:
    if isinstance(values, str | bytes | bytearray | memoryview) or not isinstance(values, Iterable):
        return frozenset([as_bytes(values)])
    return frozenset(as_bytes(value) for value in values)
