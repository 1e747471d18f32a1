"""Queries that list the messages with faults, at most a limit of each kind."""

from __future__ import annotations

from oncemq.spark.audit.queries.deliveries import DELIVERIES
from oncemq.spark.audit.queries.messages import UNKNOWN, VERDICTS
from oncemq.spark.audit.queries.puts import PLACEMENTS

_COLUMNS = "kind, broker, topic_id, subscriber, pattern, offset"


def _limited(ctes: str, found: str) -> str:
    return f"""
        with {ctes},
        found as (select distinct {_COLUMNS} from ({found})),
        ranked as (
            select *, row_number() over (
                partition by kind order by broker, topic_id, subscriber, pattern, offset
            ) as rank from found
        )
        select {_COLUMNS} from ranked where rank <= :findings_max order by {_COLUMNS}
    """


#: The kinds of faults that a query finds, and the query. Two queries find duplicated messages.
FINDINGS = [
    (
        {"lost", "corrupted", "duplicated"},
        _limited(
            VERDICTS,
            """
            select *, explode(array_compact(array(
                if(lost, 'lost', null), if(corrupted, 'corrupted', null), if(duplicated, 'duplicated', null)
            ))) as kind from verdicts
            """,
        ),
    ),
    ({"unknown"}, _limited(UNKNOWN, "select *, 'unknown' as kind from unknown")),
    (
        {"duplicated", "out_of_order"},
        _limited(
            DELIVERIES,
            """
            select 'duplicated' as kind, broker, topic_id, subscriber, pattern,
                   explode(sequence(start, least(stop, acked_below) - 1)) as offset
            from deliveries where start < acked_below and not is_shared
            union all
            select 'out_of_order' as kind, broker, topic_id, subscriber, pattern,
                   explode(sequence(start, least(stop, delivered_below) - 1)) as offset
            from deliveries where start < delivered_below and not is_shared
            """,
        ),
    ),
    (
        {"same_offset", "stored_twice"},
        _limited(
            PLACEMENTS,
            """
            select 'same_offset' as kind, broker, topic_id, '' as subscriber, '' as pattern,
                   explode(sequence(start, least(stop, used_below) - 1)) as offset
            from placements where start < used_below
            union all
            select 'stored_twice' as kind, broker, topic_id, '' as subscriber, '' as pattern,
                   explode(sequence(start, stop - 1)) as offset
            from placements where placement_count > 1
            """,
        ),
    ),
]
