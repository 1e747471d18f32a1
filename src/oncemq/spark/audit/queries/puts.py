"""Queries about files and puts.

A message that was sent and stored is at a known offset. A message that was sent without a reply, or stored without an
offset (it is assigned later, or the reply went to a process that died), may be stored once or not at all: it is in
doubt. If another process sends a message of an outbox again, it is the same put.
"""

from __future__ import annotations

FILES = """
    select file, count(*) as lines, count(broken) as broken, count_if(not complete) as incomplete,
           max(seq) + 1 as written, max(version) as version
    from {lines} group by file
"""

BATCHES = """
    batches as (
        select session, number, part,
               max(topic) as topic,
               max(case when kind = 'sent' then count end) as sent,
               max(case when kind = 'sent' then ttl_ms end) as ttl_ms,
               first(case when kind = 'sent' then digests end, true) as digests,
               collect_set(
                   case when kind = 'stored' and first >= 0
                   then named_struct('broker', broker, 'topic_id', topic_id, 'start', first, 'stop', first + count) end
               ) as placements,
               max(kind = 'refused') as is_refused
        from {lines} where kind in ('sent', 'stored', 'refused')
        group by session, number, part
    )
"""

PLACEMENTS = f"""
    {BATCHES},
    spread as (
        select session, number, part, topic, sent, is_refused, size(placements) as placement_count,
               explode_outer(placements) as placement
        from batches
    ),
    placements as (
        select *, placement.broker as broker, placement.topic_id as topic_id, placement.start as start,
               placement.stop as stop,
               max(placement.stop) over (
                   partition by placement.broker, placement.topic_id order by placement.start, session, number, part
                   rows between unbounded preceding and 1 preceding
               ) as used_below
        from spread
    )
"""

#: The puts of each topic. Messages in doubt have no topic.
TOPICS = f"""
    with {PLACEMENTS}
    select broker, topic_id, max(topic) as topic,
           sum(stop - start) as put,
           min(start) as first_offset,
           max(stop) as end_offset,
           sum(case when start < used_below then least(stop, used_below) - start else 0 end) as same_offset,
           sum(case when placement_count > 1 then stop - start else 0 end) as stored_twice,
           sum(case when placement_count = 0 and not is_refused then sent else 0 end) as in_doubt
    from placements group by broker, topic_id
"""

#: The number of messages that were put after the start position of each subscription.
PUT_SINCE = f"""
    with {PLACEMENTS}
    select p.broker, p.topic_id, s.subscriber, s.pattern, sum(greatest(stop - greatest(p.start, s.start), 0)) as put
    from placements p join (
        select broker, topic_id, subscriber, pattern, min(start) as start
        from {{acked_ranges}} group by broker, topic_id, subscriber, pattern
    ) s on s.broker = p.broker and s.topic_id = p.topic_id
    group by p.broker, p.topic_id, s.subscriber, s.pattern
"""
