"""The names of options that are not ours: those that Spark adds, and those of Spark's Kafka source and sink.

An option that nobody reads would be ignored in silence, so every name that is not known is an error, which says what to
write instead.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: The options of `writeStream` that Spark passes to a sink. It passes none of its own to a source or a batch write.
STREAM_SINK = ("checkpointLocation", "queryName")

#: Options of Spark's Kafka source that have another name here, or none → what to write instead.
KAFKA_SOURCE = {
    "kafka.bootstrap.servers": "use 'url'",
    "kafka.group.id": "use 'subscription'",
    "groupIdPrefix": "use 'subscription'",
    "subscribe": "use 'topics'",
    "subscribePattern": "use 'regex', or 'pattern' with '*' and '#' for whole levels",
    "includeHeaders": "the column 'headers' is always there; 'columns' leaves it out",
    "kafkaConsumer.pollTimeoutMs": "use 'timeout'",
    "fetchOffset.numRetries": "use 'timeout': attempts are repeated until it is over",
    "fetchOffset.retryIntervalMs": "use 'timeout': attempts are repeated until it is over",
}
#: The same for its sink.
KAFKA_SINK = {
    "kafka.bootstrap.servers": "use 'url'",
    "includeHeaders": "the column 'headers' is written if there is one",
}
#: Other options of `connect` → what to write instead. A secret would be part of plans, which many can see.
_CREDENTIALS = {
    "token": "it would be part of the query's plan: use 'context', 'tokenFile', or ONCEMQ_TOKEN in the environment of "
    "Spark's processes",
    "curve_secret": "it would be part of the query's plan: use 'context', or ONCEMQ_CURVE_SECRET in the environment of "
    "Spark's processes",
    "token_file": "use 'tokenFile'",
    **dict.fromkeys(
        ("tls_certificate", "tls_key", "tls_server_name", "curve_server", "curve_public"),
        "put it into a context, and use 'context'",
    ),
}
_KAFKA_CLIENT = "it configures Kafka's clients and has no meaning here: leave it out"

_PATH = "topics have no path: call load(), save() and start() without one, and name the topic with the option 'topic'"
#: Spark adds these to the options when a table of its catalog is created.
_CATALOG = ("provider", "owner")
_TABLE = (
    "Spark does not pass the options of CREATE TABLE to the source: "
    "use CREATE TEMPORARY VIEW … USING oncemq OPTIONS (…)"
)


def refusal_of(name: str, known: Iterable[str], kafka: dict[str, str]) -> str:
    """Why an option that is not in `known` is refused, and what to write instead."""
    lower = name.lower()
    if lower in ("path", "paths"):
        return _PATH
    if lower in _CATALOG or lower.startswith("option."):
        return _TABLE
    for ours, advice in _CREDENTIALS.items():
        if lower in (ours, ours.replace("_", "")):
            return f"'{name}' is not an option here: {advice}"
    for theirs, advice in kafka.items():
        if theirs.lower() == lower:
            return f"'{theirs}' is an option of Spark's Kafka connector: {advice}"
    if lower.startswith("kafka."):
        return f"'{name}' is an option of Spark's Kafka connector: {_KAFKA_CLIENT}"
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(lower, by_lower, n=1, cutoff=0.6)
    if close:
        return f"there is no option '{name}'; did you mean '{by_lower[close[0]]}'?"
    return f"there is no option '{name}'; the options are {', '.join(sorted(by_lower.values()))}"
