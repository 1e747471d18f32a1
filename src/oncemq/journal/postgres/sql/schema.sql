-- The journal of a broker. The schema is created once, in one transaction.
-- Only the broker may write; everybody else may select. docs/journal.md describes the columns.

create schema oncemq;

create table oncemq.journal_meta (
    only_row boolean primary key default true check (only_row),
    schema_version integer not null,
    -- Of the events in the groups.
    journal_version integer not null,
    journal_id bytea not null,
    extent_bytes bigint not null,
    -- False: the next group writes topic, producer, consumer and message again.
    are_tables_current boolean not null default false
);

-- Who may write, and where the journal ends. Updated with every group: free space on its page keeps that cheap.
create table oncemq.journal_lease (
    only_row boolean primary key default true check (only_row),
    term bigint not null,
    holder text not null,
    address text not null,
    backend_pid integer not null,
    backend_start timestamptz not null,
    since timestamptz not null,
    expires_at timestamptz not null,
    last_sequence bigint not null,
    last_position bigint not null
) with (fillfactor = 10);

create table oncemq.journal_group (
    sequence bigint primary key,
    position bigint not null unique,
    size bigint not null,
    time_ms bigint not null,
    -- Seeded XXH3 of the other columns.
    checksum bigint not null,
    events bytea not null
);

create table oncemq.journal_record (
    position bigint primary key,
    topic_id bigint not null,
    -- As it was written: -1 if the offset was not known yet.
    first_offset bigint not null,
    count integer not null,
    -- XXH3 of the payload, as its producer computed it.
    checksum bigint not null,
    -- For the view: null if the batch is not visible (staged, not due yet, or moved).
    published_offset bigint,
    published_ms bigint not null,
    payload bytea not null
) with (autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_scale_factor = 0.05);

-- Producers compress payloads.
alter table oncemq.journal_record alter column payload set storage external;

create index journal_record_published on oncemq.journal_record (topic_id, published_offset)
    where published_offset is not null;

create table oncemq.journal_snapshot (
    sequence bigint primary key,
    position bigint not null,
    version integer not null,
    chunks integer not null
);

create table oncemq.journal_chunk (
    sequence bigint not null references oncemq.journal_snapshot on delete cascade,
    number integer not null,
    -- Seeded XXH3 of sequence, number and chunk.
    checksum bigint not null,
    chunk bytea not null,
    primary key (sequence, number)
);

alter table oncemq.journal_chunk alter column chunk set storage external;

-- The first statement of every append. If it finds no row, its error ends the whole transaction.
create function oncemq.keep_term(mine bigint, expected bigint, sequence bigint, ends_at bigint, lease_ms bigint)
returns void language plpgsql as $$
begin
    update oncemq.journal_lease
    set last_sequence = sequence, last_position = ends_at,
        expires_at = clock_timestamp() + lease_ms * interval '1 millisecond'
    where term = mine and last_sequence = expected;
    if not found then
        raise exception 'another broker has taken over' using errcode = 'OM001';
    end if;
end
$$;

-- The last statement of every background transaction. A take-over waits for it; appends do not.
create function oncemq.check_term(mine bigint) returns void language plpgsql as $$
begin
    perform 1 from oncemq.journal_lease where term = mine for key share;
    if not found then
        raise exception 'another broker has taken over' using errcode = 'OM001';
    end if;
end
$$;
