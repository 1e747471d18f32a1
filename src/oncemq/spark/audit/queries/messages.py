"""Queries that compare messages one by one: each message's verdict.

    missing      acked, but never delivered
    expired      missing, and put with a time to live
    unexplained  missing, and put by a producer without records: it may have had a time to live
    lost         missing for no other reason (the messages that the quota dropped are subtracted later)
    corrupted    delivered, but different from what was put
    unrecorded   delivered, but not put by a producer with records
    duplicated      in a shared subscription: leased again after its ack, or acked under two leases; tokens increase

A range is expanded in two steps, so that no row contains more than a chunk of it.
"""

from __future__ import annotations

from oncemq.spark.audit.queries.deliveries import LINES_WITH_PERIODS
from oncemq.spark.audit.queries.puts import BATCHES

MESSAGES = f"""
    {LINES_WITH_PERIODS},
    delivered as (
        select broker, topic_id, subscriber, pattern, is_shared, era,
               explode(case kind
                   when 'got' then transform(
                       flatten(transform(ranges, r -> sequence(r[0], r[0] + r[1] - 1))),
                       (o, i) -> named_struct(
                           'offset', o, 'what', 'delivered', 'digest', get(digests, i), 'token', token
                       )
                   )
                   when 'settled' then flatten(transform(done, r -> transform(
                       sequence(r[1], r[1] + r[2] - 1),
                       o -> named_struct('offset', o, 'what', 'done', 'digest', cast(null as bigint), 'token', r[0])
                   )))
               end) as mark
        from period_lines where kind in ('got', 'settled')
    ),
    spans as (
        select broker, topic_id, subscriber, pattern, is_shared, era, 'expected' as what, start, stop
        from {{acked_ranges}}
        union all
        select broker, topic_id, subscriber, pattern, is_shared, era, what, span[0], span[0] + span[1]
        from (
            select *, if(kind = 'got', 'passed', kind) as what, explode(if(kind = 'got', passed, ranges)) as span
            from period_lines where kind in ('got', 'skipped', 'left')
        )
    ),
    chunks as (
        select *, explode(sequence(start, stop - 1, 10000L)) as chunk from spans where stop > start
    ),
    marks as (
        select broker, topic_id, subscriber, pattern, is_shared, era, mark.offset, mark.what, mark.digest, mark.token
        from delivered
        union all
        select broker, topic_id, subscriber, pattern, is_shared, era,
               explode(sequence(chunk, least(chunk + 9999, stop - 1))) as offset, what, null, null
        from chunks
    ),
    messages as (
        select broker, topic_id, subscriber, pattern, is_shared, era, offset,
               count_if(what = 'delivered') as times,
               max(what = 'delivered') as is_delivered,
               max(what = 'expected') as is_expected,
               max(what = 'passed') as is_passed,
               max(what = 'skipped') as is_skipped,
               max(what = 'left') as is_left,
               min(digest) as digest_min,
               max(digest) as digest_max,
               max(case when what = 'delivered' then token end) as last_token,
               min(case when what = 'done' then token end) as done_token,
               max(case when what = 'done' then token end) as done_again_token
        from (select /*+ REPARTITION(broker, topic_id, offset) */ * from marks)
        group by broker, topic_id, subscriber, pattern, is_shared, era, offset
    ),
    {BATCHES},
    stored as (
        select ttl_ms, placement.broker, placement.topic_id, placement.start, placement.stop,
               posexplode(coalesce(
                   if(size(digests) = placement.stop - placement.start, digests, null),
                   array_repeat(cast(null as bigint), int(placement.stop - placement.start))
               )) as (at, digest)
        from (select ttl_ms, digests, explode(placements) as placement from batches)
    ),
    puts as (
        select broker, topic_id, offset, min(digest) as put_digest, max(ttl_ms) > 0 as may_expire
        from (select /*+ REPARTITION(broker, topic_id, offset) */ *
              from (select broker, topic_id, start + at as offset, digest, ttl_ms from stored))
        group by broker, topic_id, offset
    )
"""

VERDICTS = f"""
    {MESSAGES},
    compared as (
        select m.*, put_digest, may_expire is not null as is_put, coalesce(may_expire, false) as may_expire,
               is_expected and not is_delivered and not is_left and not (is_passed and not is_skipped) as is_missing,
               is_delivered and (is_expected or done_token is not null) as is_consumed
        from messages m left join puts p
          on p.broker = m.broker and p.topic_id = m.topic_id and p.offset = m.offset
    ),
    verdicts as (
        select broker, topic_id, subscriber, pattern, era, offset, times, digest_max,
               is_consumed as consumed,
               is_delivered and not is_consumed as given,
               is_missing and may_expire as expired,
               is_passed and not is_delivered and not is_skipped as passed,
               is_left and not is_delivered as was_left,
               is_missing and not is_put and not :complete as unexplained,
               is_missing and not may_expire and (is_put or :complete) as lost,
               is_delivered and coalesce(digest_min != digest_max or digest_max != put_digest, false) as corrupted,
               is_delivered and not is_put as unrecorded,
               is_shared and coalesce(last_token > done_token or done_again_token > done_token, false) as duplicated
        from compared
    )
"""

#: The counts of each subscription. A message counts once, even if the subscription sought back to it.
COUNTS = f"""
    with {VERDICTS},
    by_offset as (
        select broker, topic_id, subscriber, pattern, offset,
               sum(times) as times, sum(greatest(times - 1, 0)) as again,
               max(consumed) as consumed, max(given) as given, max(expired) as expired, max(passed) as passed,
               max(was_left) as was_left, max(unexplained) as unexplained, max(lost) as lost,
               max(corrupted) as corrupted, max(unrecorded) as unrecorded, max(duplicated) as duplicated
        from verdicts group by broker, topic_id, subscriber, pattern, offset
    )
    select broker, topic_id, subscriber, pattern,
           max(times > 0 or passed) as judged, count(*) as seen,
           count_if(consumed) as consumed, count_if(given and not consumed) as given, sum(again) as redelivered,
           count_if(expired) as expired, count_if(passed) as passed, count_if(was_left) as left_unread,
           count_if(unexplained) as unexplained, count_if(lost) as lost, count_if(corrupted) as corrupted,
           count_if(unrecorded) as unrecorded, count_if(duplicated) as duplicated
    from by_offset group by broker, topic_id, subscriber, pattern
"""

#: Delivered and never put. A message with the digest of a put in doubt is not unknown, up to the number of such puts.
UNKNOWN = f"""
    {VERDICTS},
    doubts as (
        select topic, digest, count(*) as may_be_stored
        from (select topic, explode(digests) as digest from batches where size(placements) = 0 and not is_refused)
        group by topic, digest
    ),
    unrecorded_messages as (
        select v.*, n.topic,
               row_number() over (
                   partition by v.broker, v.topic_id, subscriber, pattern, era, digest_max order by offset
               ) as rank
        from verdicts v join {{names}} n on n.broker = v.broker and n.topic_id = v.topic_id
        where unrecorded
    ),
    unknown as (
        select distinct s.broker, s.topic_id, s.subscriber, s.pattern, s.offset
        from unrecorded_messages s left join doubts d on d.topic = s.topic and d.digest = s.digest_max
        where s.rank > coalesce(d.may_be_stored, 0)
    )
"""

UNKNOWN_COUNTS = f"""
    with {UNKNOWN}
    select broker, topic_id, subscriber, pattern, count(*) as unknown
    from unknown group by broker, topic_id, subscriber, pattern
"""
