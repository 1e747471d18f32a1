"""A database that can't store anything: the broker answers hellos and no put, and the client does not wait for ever."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from oncemq.protocol import errors
from oncemq.testing.broker_process import BrokerProcess
from oncemq.testing.postgres import url_of

_FULL = """
create function oncemq.refuse() returns trigger language plpgsql as
$$ begin raise exception 'could not extend file: No space left on device' using errcode = '53100'; end $$;
create trigger full_disk before insert on oncemq.journal_group for each row execute function oncemq.refuse();
"""


def test_a_put_ends_while_the_database_is_full_and_works_when_it_has_space(postgres: str, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, f"--journal={url_of(postgres)}", "--lease-ms=500")
    broker.start()
    try:
        with broker.connect(timeout_s=0.2, tries=5) as client, psycopg.connect(postgres, autocommit=True) as database:
            client.create_topic("t", retain_ms=3_600_000)
            database.execute(_FULL.encode())
            with pytest.raises((errors.BrokerAway, errors.NotNow)):
                client.put("t", b"never")
            database.execute("drop trigger full_disk on oncemq.journal_group")
            for _ in range(100):
                try:
                    client.put("t", b"after")
                    break
                except (errors.BrokerAway, errors.NotNow):
                    continue
            assert [message.value for message in client.read("t", start="earliest")][-1] == b"after"
    finally:
        broker.stop()
