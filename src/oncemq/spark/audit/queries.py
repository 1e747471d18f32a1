"""The questions that the audit asks of the lines, in SQL. `{lines}` are all lines, `{periods}` where each epoch belongs
(periods.py), `{said}` what the broker said of positions; none of these is in here.

What can be seen from whole batches is found from their ranges; messages are looked at one by one (`_MESSAGES`) only to
find what is missing or differs. Both sides of that are brought together by (broker, topic_id, offset) once.
"""

from __future__ import annotations

FILES = """
    select file, count(*) as lines, count(broken) as broken, count_if(not complete) as incomplete,
           max(seq) + 1 as written, max(version) as version
    from {lines} group by file
"""

PERIODS = """
    select kind, broker, topic_id, subscriber, pattern, topic, epoch, acked, shared, sent_ms, at_ms, session, number
    from {lines} where kind in ('opened', 'subscribed', 'displaced', 'moving', 'moved', 'stayed')
"""

# Puts: sent + stored is a message at a known offset. Sent without an answer, or stored without an offset (it comes
# later, or was said to a process that died), may be stored once or not at all: it is in doubt. What an outbox sends
# again, in another process, is the same put.

_BATCHES = """
    batches as (
        select session, number, part,
               max(topic) as topic,
               max(case when kind = 'sent' then count end) as sent,
               max(case when kind = 'sent' then ttl_ms end) as ttl_ms,
               first(case when kind = 'sent' then digests end, true) as digests,
               collect_set(
                   case when kind = 'stored' and first >= 0
                   then named_struct('broker', broker, 'topic_id', topic_id, 'start', first, 'stop', first + count) end
               ) as places,
               max(kind = 'refused') as is_refused
        from {lines} where kind in ('sent', 'stored', 'refused')
        group by session, number, part
    )
"""

_PLACES = f"""
    {_BATCHES},
    spread as (
        select session, number, part, topic, sent, is_refused, size(places) as places_count,
               explode_outer(places) as place
        from batches
    ),
    places as (
        select *, place.broker as broker, place.topic_id as topic_id, place.start as start, place.stop as stop,
               max(place.stop) over (
                   partition by place.broker, place.topic_id order by place.start, session, number, part
                   rows between unbounded preceding and 1 preceding
               ) as taken_below
        from spread
    )
"""

#: Of each topic; what is in doubt has none.
TOPICS = f"""
    with {_PLACES}
    select broker, topic_id, max(topic) as topic,
           sum(stop - start) as put,
           min(start) as first_offset,
           max(stop) as end_offset,
           sum(case when start < taken_below then least(stop, taken_below) - start else 0 end) as same_offset,
           sum(case when places_count > 1 then stop - start else 0 end) as stored_twice,
           sum(case when places_count = 0 and not is_refused then sent else 0 end) as in_doubt
    from places group by broker, topic_id
"""

#: Messages that were put since a subscription began.
PUT_SINCE = f"""
    with {_PLACES}
    select p.broker, p.topic_id, s.subscriber, s.pattern, sum(greatest(stop - greatest(p.start, s.start), 0)) as put
    from places p join (
        select broker, topic_id, subscriber, pattern, min(start) as start
        from {{said}} group by broker, topic_id, subscriber, pattern
    ) s on s.broker = p.broker and s.topic_id = p.topic_id
    group by p.broker, p.topic_id, s.subscriber, s.pattern
"""

# Deliveries, each line with its period.

_PERIODED = """
    perioded as (
        select /*+ BROADCAST(p) */ l.*, p.is_shared, p.era, p.generation
        from {lines} l join {periods} p
          on p.broker = l.broker and p.subscriber = l.subscriber and p.pattern = l.pattern and p.epoch = l.epoch
         and p.owned_id = if(l.pattern = '', l.topic_id, 0L)
        where l.topic_id != 0
    )
"""

_WALK = f"""
    {_PERIODED},
    steps as (
        select broker, topic_id, subscriber, pattern, topic, is_shared, era, generation, epoch, seq, kind, acked,
               dropped,
               posexplode_outer(if(kind = 'got', ranges, null)) as (place, span)
        from perioded where kind in ('opened', 'acked', 'got', 'back')
    ),
    attempts as (
        select *, span[0] as start, span[0] + span[1] as stop,
               max(acked) over (
                   partition by broker, topic_id, subscriber, pattern, generation order by epoch, seq, place
                   rows between unbounded preceding and 1 preceding
               ) as done_below,
               count_if(kind = 'back') over (
                   partition by broker, topic_id, subscriber, pattern, generation, epoch order by seq, place
                   rows between unbounded preceding and current row
               ) as attempt
        from steps
    ),
    walk as (
        select *,
               max(stop) over (
                   partition by broker, topic_id, subscriber, pattern, generation, epoch, attempt order by seq, place
                   rows between unbounded preceding and 1 preceding
               ) as given_below
        from attempts
    )
"""

#: Of each subscription's generations: what the broker said of its position; what was given again although it was
#: confirmed as done (doubled), and what was given after a higher offset to an owner who had not gone back.
STATEMENTS = f"""
    with {_WALK}
    select broker, topic_id, subscriber, pattern, max(topic) as topic, is_shared, era, generation,
           min(acked) as start, max(acked) as stop, max(dropped) as dropped,
           sum(case when start < done_below and not is_shared then least(stop, done_below) - start else 0 end)
               as doubled,
           sum(case when start < given_below and not is_shared then least(stop, given_below) - start else 0 end)
               as out_of_order
    from walk group by broker, topic_id, subscriber, pattern, is_shared, era, generation
"""

# Messages, one by one. A range is taken apart in two steps, so that no row holds more than a chunk of it.

_MESSAGES = f"""
    {_PERIODED},
    given as (
        select broker, topic_id, subscriber, pattern, is_shared, era,
               explode(case kind
                   when 'got' then transform(
                       flatten(transform(ranges, r -> sequence(r[0], r[0] + r[1] - 1))),
                       (o, i) -> named_struct('offset', o, 'what', 'given', 'digest', get(digests, i), 'token', token)
                   )
                   when 'settled' then flatten(transform(done, r -> transform(
                       sequence(r[1], r[1] + r[2] - 1),
                       o -> named_struct('offset', o, 'what', 'done', 'digest', cast(null as bigint), 'token', r[0])
                   )))
               end) as mark
        from perioded where kind in ('got', 'settled')
    ),
    spans as (
        select broker, topic_id, subscriber, pattern, is_shared, era, 'expected' as what, start, stop from {{said}}
        union all
        select broker, topic_id, subscriber, pattern, is_shared, era, what, span[0], span[0] + span[1]
        from (
            select *, if(kind = 'got', 'passed', kind) as what, explode(if(kind = 'got', passed, ranges)) as span
            from perioded where kind in ('got', 'skipped', 'left')
        )
    ),
    chunks as (
        select *, explode(sequence(start, stop - 1, 10000L)) as chunk from spans where stop > start
    ),
    marks as (
        select broker, topic_id, subscriber, pattern, is_shared, era, mark.offset, mark.what, mark.digest, mark.token
        from given
        union all
        select broker, topic_id, subscriber, pattern, is_shared, era,
               explode(sequence(chunk, least(chunk + 9999, stop - 1))) as offset, what, null, null
        from chunks
    ),
    messages as (
        select broker, topic_id, subscriber, pattern, is_shared, era, offset,
               count_if(what = 'given') as times,
               max(what = 'given') as is_given,
               max(what = 'expected') as is_expected,
               max(what = 'passed') as is_passed,
               max(what = 'skipped') as is_skipped,
               max(what = 'left') as is_left,
               min(digest) as digest_min,
               max(digest) as digest_max,
               max(case when what = 'given' then token end) as last_token,
               min(case when what = 'done' then token end) as done_token,
               max(case when what = 'done' then token end) as done_again_token
        from (select /*+ REPARTITION(broker, topic_id, offset) */ * from marks)
        group by broker, topic_id, subscriber, pattern, is_shared, era, offset
    ),
    {_BATCHES},
    stored as (
        select ttl_ms, place.broker, place.topic_id, place.start, place.stop,
               posexplode(coalesce(
                   if(size(digests) = place.stop - place.start, digests, null),
                   array_repeat(cast(null as bigint), int(place.stop - place.start))
               )) as (at, digest)
        from (select ttl_ms, digests, explode(places) as place from batches)
    ),
    puts as (
        select broker, topic_id, offset, min(digest) as put_digest, max(ttl_ms) > 0 as may_expire
        from (select /*+ REPARTITION(broker, topic_id, offset) */ *
              from (select broker, topic_id, start + at as offset, digest, ttl_ms from stored))
        group by broker, topic_id, offset
    )
"""

# Each message's verdict:
#   missing      the broker has said that it is done, and nobody was given it
#   expired      missing, and put with a time to live
#   unexplained  missing, and put by a producer that does not record: it may have had one
#   lost         any other that is missing (less those that the quota took, which are only counted)
#   corrupted    given, and not as it was put
#   unrecorded   given, and put by nobody who records
#   doubled      of a shared subscription: leased again after it was done, or done under two leases; tokens rise

_VERDICTS = f"""
    {_MESSAGES},
    compared as (
        select m.*, put_digest, may_expire is not null as is_put, coalesce(may_expire, false) as may_expire,
               is_expected and not is_given and not is_left and not (is_passed and not is_skipped) as is_missing,
               is_given and (is_expected or done_token is not null) as is_consumed
        from messages m left join puts p
          on p.broker = m.broker and p.topic_id = m.topic_id and p.offset = m.offset
    ),
    verdicts as (
        select broker, topic_id, subscriber, pattern, era, offset, times, digest_max,
               is_consumed as consumed,
               is_given and not is_consumed as given,
               is_missing and may_expire as expired,
               is_passed and not is_given and not is_skipped as passed,
               is_left and not is_given as was_left,
               is_missing and not is_put and not :complete as unexplained,
               is_missing and not may_expire and (is_put or :complete) as lost,
               is_given and coalesce(digest_min != digest_max or digest_max != put_digest, false) as corrupted,
               is_given and not is_put as unrecorded,
               is_shared and coalesce(last_token > done_token or done_again_token > done_token, false) as doubled
        from compared
    )
"""

#: Of each subscription. A message counts once, however often it was sought back to.
COUNTS = f"""
    with {_VERDICTS},
    by_offset as (
        select broker, topic_id, subscriber, pattern, offset,
               sum(times) as times, sum(greatest(times - 1, 0)) as again,
               max(consumed) as consumed, max(given) as given, max(expired) as expired, max(passed) as passed,
               max(was_left) as was_left, max(unexplained) as unexplained, max(lost) as lost,
               max(corrupted) as corrupted, max(unrecorded) as unrecorded, max(doubled) as doubled
        from verdicts group by broker, topic_id, subscriber, pattern, offset
    )
    select broker, topic_id, subscriber, pattern,
           max(times > 0 or passed) as judged, count(*) as seen,
           count_if(consumed) as consumed, count_if(given and not consumed) as given, sum(again) as redelivered,
           count_if(expired) as expired, count_if(passed) as passed, count_if(was_left) as left_unread,
           count_if(unexplained) as unexplained, count_if(lost) as lost, count_if(corrupted) as corrupted,
           count_if(unrecorded) as unrecorded, count_if(doubled) as doubled
    from by_offset group by broker, topic_id, subscriber, pattern
"""

#: Given and never put: more often than puts are in doubt whose messages look the same.
_UNKNOWN = f"""
    {_VERDICTS},
    doubts as (
        select topic, digest, count(*) as may_be_stored
        from (select topic, explode(digests) as digest from batches where size(places) = 0 and not is_refused)
        group by topic, digest
    ),
    strange as (
        select v.*, n.topic,
               row_number() over (
                   partition by v.broker, v.topic_id, subscriber, pattern, era, digest_max order by offset
               ) as rank
        from verdicts v join {{names}} n on n.broker = v.broker and n.topic_id = v.topic_id
        where unrecorded
    ),
    unknown as (
        select distinct s.broker, s.topic_id, s.subscriber, s.pattern, s.offset
        from strange s left join doubts d on d.topic = s.topic and d.digest = s.digest_max
        where s.rank > coalesce(d.may_be_stored, 0)
    )
"""

UNKNOWN_COUNTS = f"""
    with {_UNKNOWN}
    select broker, topic_id, subscriber, pattern, count(*) as unknown
    from unknown group by broker, topic_id, subscriber, pattern
"""


# Findings: of each kind no more than a limit.

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


#: The kinds of findings that a query finds, and the query. Doubled messages are found in two ways.
FINDINGS = [
    (
        {"lost", "corrupted", "doubled"},
        _limited(
            _VERDICTS,
            """
            select *, explode(array_compact(array(
                if(lost, 'lost', null), if(corrupted, 'corrupted', null), if(doubled, 'doubled', null)
            ))) as kind from verdicts
            """,
        ),
    ),
    ({"unknown"}, _limited(_UNKNOWN, "select *, 'unknown' as kind from unknown")),
    (
        {"doubled", "out_of_order"},
        _limited(
            _WALK,
            """
            select 'doubled' as kind, broker, topic_id, subscriber, pattern,
                   explode(sequence(start, least(stop, done_below) - 1)) as offset
            from walk where start < done_below and not is_shared
            union all
            select 'out_of_order' as kind, broker, topic_id, subscriber, pattern,
                   explode(sequence(start, least(stop, given_below) - 1)) as offset
            from walk where start < given_below and not is_shared
            """,
        ),
    ),
    (
        {"same_offset", "stored_twice"},
        _limited(
            _PLACES,
            """
            select 'same_offset' as kind, broker, topic_id, '' as subscriber, '' as pattern,
                   explode(sequence(start, least(stop, taken_below) - 1)) as offset
            from places where start < taken_below
            union all
            select 'stored_twice' as kind, broker, topic_id, '' as subscriber, '' as pattern,
                   explode(sequence(start, stop - 1)) as offset
            from places where places_count > 1
            """,
        ),
    ),
]
