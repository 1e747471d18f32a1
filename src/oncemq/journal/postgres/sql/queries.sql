-- Named queries: each is one statement, which ends before the next name.

-- name: prepare
select set_config(name, wanted.value, false)
from pg_settings join (
    values
        ('idle_in_transaction_session_timeout', %s), ('lock_timeout', %s),
        ('tcp_keepalives_idle', %s), ('tcp_keepalives_interval', %s), ('tcp_keepalives_count', %s),
        ('statement_timeout', '0'), ('idle_session_timeout', '0'), ('transaction_timeout', '0')
) as wanted (name, value) using (name)

-- name: settings
select name, setting from pg_settings
where name in ('fsync', 'full_page_writes', 'synchronous_commit', 'server_encoding', 'server_version_num')
union all
select 'is_replica', pg_is_in_recovery()::text

-- name: has_schema
select exists (
    select from pg_class join pg_namespace on pg_namespace.oid = relnamespace
    where nspname = 'oncemq' and relname = 'journal_meta'
)

-- name: lock_schema
select pg_advisory_xact_lock(5426977284)

-- name: create_meta
insert into oncemq.journal_meta (schema_version, journal_version, journal_id, extent_bytes)
values (%s, %s, %s, %s)

-- name: create_lease
insert into oncemq.journal_lease
values (true, 0, '', '', 0, 'epoch', 'epoch', 'epoch', 0, %s)

-- name: begin_after
update oncemq.journal_lease set last_sequence = %s, last_position = %s

-- name: meta
select schema_version, journal_version, journal_id, extent_bytes, are_tables_current from oncemq.journal_meta

-- name: raise_version
update oncemq.journal_meta set journal_version = %s where journal_version < %s

-- name: lease
select term, holder, address, to_char(since at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'),
    extract(epoch from expires_at - clock_timestamp())::float8
from oncemq.journal_lease

-- name: end_former_holder
select pg_terminate_backend(activity.pid)
from oncemq.journal_lease as lease
join pg_stat_activity as activity on activity.pid = lease.backend_pid and activity.backend_start = lease.backend_start
where lease.expires_at < clock_timestamp()

-- name: lock_lease
select term from oncemq.journal_lease where expires_at < clock_timestamp() for update

-- name: take_over
update oncemq.journal_lease
set term = term + 1, holder = %s, address = %s, since = clock_timestamp(),
    backend_pid = pg_backend_pid(),
    backend_start = (select backend_start from pg_stat_activity where pid = pg_backend_pid()),
    expires_at = clock_timestamp() + %s::int8 * interval '1 millisecond'
returning term, last_sequence, last_position

-- name: renew
update oncemq.journal_lease set expires_at = clock_timestamp() + %s::int8 * interval '1 millisecond'
where term = %s returning term

-- name: release_lease
update oncemq.journal_lease set expires_at = 'epoch' where term = %s

-- name: raise_term
update oncemq.journal_lease set term = %s where term = %s

-- name: term
select term from oncemq.journal_lease

-- name: keep_term
select oncemq.keep_term(%s::int8, %s::int8, %s::int8, %s::int8, %s::int8)

-- name: check_term
select oncemq.check_term(%s::int8)

-- name: append_group
insert into oncemq.journal_group (sequence, position, size, time_ms, checksum, events)
values (%s::int8, %s::int8, %s::int8, %s::int8, %s::int8, %b)

-- name: append_records
insert into oncemq.journal_record
    (position, topic_id, first_offset, count, checksum, published_offset, published_ms, payload)
select position, topic_id, first_offset, count::int, checksum,
    case when first_offset >= 0 then first_offset end, %s::int8, payload
from unnest(%b::int8[], %b::int8[], %b::int8[], %b::int8[], %b::int8[], %b::bytea[])
    as added (position, topic_id, first_offset, count, checksum, payload)

-- name: read
select position, topic_id, first_offset, checksum, payload
from oncemq.journal_record where position = any(%b::int8[])

-- name: scan
select position, topic_id, first_offset, count, checksum, octet_length(payload)
from oncemq.journal_record where position >= %s and position < %s order by position limit %s

-- name: extents
select position / %s::int8, sum(size)::int8 from oncemq.journal_group group by 1 order by 1

-- name: groups
select sequence, position, size, time_ms, checksum, events
from oncemq.journal_group where sequence > %s and sequence <= %s order by sequence limit %s

-- name: release_records
delete from oncemq.journal_record where position >= %s and position < %s

-- name: release_groups
delete from oncemq.journal_group where position >= %s and position < %s

-- name: snapshots
select sequence, position, version, chunks from oncemq.journal_snapshot order by sequence desc

-- name: chunks
select number, checksum, chunk from oncemq.journal_chunk where sequence = %s order by number

-- name: add_snapshot
insert into oncemq.journal_snapshot (sequence, position, version, chunks) values (%s, %s, %s, %s)

-- name: add_chunk
insert into oncemq.journal_chunk (sequence, number, checksum, chunk) values (%s, %s, %s, %b)

-- name: delete_snapshots
delete from oncemq.journal_snapshot where sequence <> all(%b::int8[])

-- name: all_tables_are_current
update oncemq.journal_meta set are_tables_current = true

-- name: tables_are_stale
update oncemq.journal_meta set are_tables_current = false

-- name: hide_all_batches
update oncemq.journal_record set published_offset = null where published_offset is not null

-- name: hide_batches
update oncemq.journal_record set published_offset = null where position = any(%b::int8[])

-- name: show_batches
update oncemq.journal_record as record
set published_offset = shown.first_offset, published_ms = shown.time_ms
from unnest(%b::int8[], %b::int8[], %b::int8[]) as shown (position, first_offset, time_ms)
where record.position = shown.position

-- name: delete_all_topics
delete from oncemq.topic

-- name: delete_topics
with gone as (delete from oncemq.topic where id = any(%b::int8[]) returning id)
delete from oncemq.consumer where topic_id in (select id from gone)

-- name: put_topics
insert into oncemq.topic (id, name, bias, next_offset)
select * from unnest(%b::int8[], %b::text[], %b::int8[], %b::int8[])
on conflict (id) do update set bias = excluded.bias, next_offset = excluded.next_offset

-- name: delete_all_consumers
delete from oncemq.consumer

-- name: delete_consumers
delete from oncemq.consumer using unnest(%b::int8[], %b::text[], %b::text[]) as gone (topic_id, id, pattern)
where consumer.topic_id = gone.topic_id and consumer.id = gone.id and consumer.pattern = gone.pattern

-- name: delete_pattern
with gone as (delete from oncemq.consumer where id = %s and pattern = %s returning topic_id)
delete from oncemq.topic using gone
where topic.id = gone.topic_id and not exists (select from unnest(%b::int8[]) as kept (id) where kept.id = topic.id)

-- name: put_consumers
insert into oncemq.consumer (topic_id, id, pattern, topic, position)
select * from unnest(%b::int8[], %b::text[], %b::text[], %b::text[], %b::int8[])
on conflict (topic_id, id, pattern) do update set position = excluded.position

-- name: delete_all_producers
delete from oncemq.producer

-- name: delete_producers
delete from oncemq.producer where id = any(%b::text[])

-- name: put_producers
insert into oncemq.producer (id, topic) select * from unnest(%b::text[], %b::text[])
on conflict (id) do update set topic = excluded.topic
