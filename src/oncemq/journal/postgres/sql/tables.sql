-- Tables for queries of users, updated by the transaction that appends a group. Only the broker may write.

create table oncemq.topic (
    id bigint primary key,
    name text not null,
    -- Number of messages deleted so far, which is the first offset that is still stored.
    bias bigint not null,
    next_offset bigint not null
) with (fillfactor = 50);

create index topic_name on oncemq.topic (name);

create table oncemq.producer (
    id text primary key,
    topic text not null
);

create table oncemq.consumer (
    topic_id bigint not null,
    id text not null,
    -- '' if it is subscribed to this topic by name.
    pattern text not null default '',
    topic text not null,
    -- The next offset that it has not acknowledged.
    position bigint not null,
    primary key (topic_id, id, pattern)
) with (fillfactor = 50);

create function oncemq.little_endian(data bytea, at bigint) returns bigint
language sql immutable strict parallel safe as $$
    select get_byte(data, at::integer)::bigint | (get_byte(data, at::integer + 1)::bigint << 8)
        | (get_byte(data, at::integer + 2)::bigint << 16) | (get_byte(data, at::integer + 3)::bigint << 24)
$$;

create function oncemq.slice(data bytea, at bigint, size bigint) returns bytea
language sql immutable strict parallel safe as $$
    select substring(data from at::integer + 1 for size::integer)
$$;

-- The messages of a stored batch; oncemq/protocol/batch.py draws the layout. A producer may store arbitrary bytes: of an
-- invalid batch, only the messages that can be read are shown.
-- Neither this nor as_text is parallel safe: before PostgreSQL 17 an exception can't be caught in a parallel worker.
create function oncemq.unpack(payload bytea)
returns table (number integer, content bytea, key bytea, time_ms bigint)
language plpgsql immutable strict as $$
declare
    -- A copy, so that the payload is fetched from storage once, and not at each access.
    data bytea := payload || ''::bytea;
    flags integer;
    count bigint;
    column_bytes bigint;
    values_at bigint;
    bitmap_at bigint;
    keys_at bigint;
    times_at bigint;
    starts_at bigint;
begin
    if octet_length(data) < 28 or get_byte(data, 0) <> 1 then
        return;
    end if;
    flags := get_byte(data, 1);
    count := oncemq.little_endian(data, 4);
    column_bytes := (4 * (count + 1) + 7) / 8 * 8;
    values_at := 24 + column_bytes;
    if values_at > octet_length(data) then
        return;
    end if;
    bitmap_at := values_at + (oncemq.little_endian(data, 8) + 7) / 8 * 8;
    keys_at := bitmap_at + (count + 63) / 64 * 8;
    times_at := bitmap_at;
    if flags & 1 <> 0 then
        times_at := keys_at + column_bytes + (oncemq.little_endian(data, 12) + 7) / 8 * 8;
    end if;
    if flags & 2 <> 0 then
        times_at := times_at + column_bytes + (oncemq.little_endian(data, 16) + 7) / 8 * 8;
    end if;
    for i in 0 .. count::integer - 1 loop
        number := i;
        starts_at := oncemq.little_endian(data, 24 + 4 * i);
        content := oncemq.slice(data, values_at + starts_at, oncemq.little_endian(data, 28 + 4 * i) - starts_at);
        key := null;
        if flags & 1 <> 0 and get_byte(data, (bitmap_at + i / 8)::integer) >> (i % 8) & 1 = 1 then
            starts_at := oncemq.little_endian(data, keys_at + 4 * i);
            key := oncemq.slice(
                data, keys_at + column_bytes + starts_at, oncemq.little_endian(data, keys_at + 4 * i + 4) - starts_at
            );
        end if;
        time_ms := null;
        if flags & 4 <> 0 then
            time_ms := oncemq.little_endian(data, times_at + 8 * i)
                | (oncemq.little_endian(data, times_at + 8 * i + 4) << 32);
        end if;
        return next;
    end loop;
exception when others then
    return;
end
$$;

-- Null if it is not UTF-8, or has a zero byte, which PostgreSQL's text can't hold.
create function oncemq.as_text(content bytea) returns text language plpgsql immutable strict as $$
begin
    return convert_from(content, 'UTF8');
exception when others then
    return null;
end
$$;

create view oncemq.message as
select
    topic.name as topic,
    record.published_offset + unpacked.number as "offset",
    oncemq.as_text(unpacked.content) as message,
    unpacked.content,
    unpacked.key,
    (
        select count(*) from oncemq.consumer
        where consumer.topic_id = topic.id and consumer.position <= record.published_offset + unpacked.number
    ) as subscribers_left,
    to_timestamp(coalesce(unpacked.time_ms, record.published_ms) / 1000.0) as time,
    topic.id as topic_id
from oncemq.topic
join oncemq.journal_record as record on record.topic_id = topic.id and record.published_offset >= topic.bias
cross join lateral oncemq.unpack(record.payload) as unpacked;
