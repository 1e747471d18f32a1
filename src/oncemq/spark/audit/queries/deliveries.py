"""Queries about subscriptions: their periods, and the ranges that were delivered and acked."""

from __future__ import annotations

PERIODS = """
    select kind, broker, topic_id, subscriber, pattern, topic, epoch, acked, shared, sent_ms, at_ms, session, number
    from {lines} where kind in ('opened', 'subscribed', 'displaced', 'moving', 'moved', 'stayed')
"""

LINES_WITH_PERIODS = """
    period_lines as (
        select /*+ BROADCAST(p) */ l.*, p.is_shared, p.era, p.generation
        from {lines} l join {periods} p
          on p.broker = l.broker and p.subscriber = l.subscriber and p.pattern = l.pattern and p.epoch = l.epoch
         and p.owned_id = if(l.pattern = '', l.topic_id, 0L)
        where l.topic_id != 0
    )
"""

DELIVERIES = f"""
    {LINES_WITH_PERIODS},
    steps as (
        select broker, topic_id, subscriber, pattern, topic, is_shared, era, generation, epoch, seq, kind, acked,
               dropped,
               posexplode_outer(if(kind = 'got', ranges, null)) as (range_index, span)
        from period_lines where kind in ('opened', 'acked', 'got', 'back')
    ),
    attempts as (
        select *, span[0] as start, span[0] + span[1] as stop,
               max(acked) over (
                   partition by broker, topic_id, subscriber, pattern, generation order by epoch, seq, range_index
                   rows between unbounded preceding and 1 preceding
               ) as acked_below,
               count_if(kind = 'back') over (
                   partition by broker, topic_id, subscriber, pattern, generation, epoch order by seq, range_index
                   rows between unbounded preceding and current row
               ) as attempt
        from steps
    ),
    deliveries as (
        select *,
               max(stop) over (
                   partition by broker, topic_id, subscriber, pattern, generation, epoch, attempt
                   order by seq, range_index
                   rows between unbounded preceding and 1 preceding
               ) as delivered_below
        from attempts
    )
"""

#: The acked range of each subscription and generation; messages that were delivered again although they were acked
#: (duplicated), and messages that were delivered after a higher offset to an owner that had not gone back.
ACKED_RANGES = f"""
    with {DELIVERIES}
    select broker, topic_id, subscriber, pattern, max(topic) as topic, is_shared, era, generation,
           min(acked) as start, max(acked) as stop, max(dropped) as dropped,
           sum(case when start < acked_below and not is_shared then least(stop, acked_below) - start else 0 end)
               as duplicated,
           sum(case when start < delivered_below and not is_shared then least(stop, delivered_below) - start else 0 end)
               as out_of_order
    from deliveries group by broker, topic_id, subscriber, pattern, is_shared, era, generation
"""
