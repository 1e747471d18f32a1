"""What a client does when its broker is killed, paused, or was never there."""

from __future__ import annotations

import pytest

import oncemq
from oncemq import errors
from oncemq.broker.process import BrokerProcess, free_url
from oncemq.client.transport import split_urls


def test_nobody_there_is_said_in_plain_words() -> None:
    url = free_url()
    with pytest.raises(errors.BrokerAway, match=f"no answer from {url} .2 tries.*oncemq serve"):
        oncemq.connect(url, timeout_s=0.05, tries=2)


@pytest.mark.parametrize("url", ["", "http://localhost", "nonsense", "tcp://", ["memory:", "memory:2"]])
def test_an_address_that_can_not_be_one_is_refused(url: str | list[str]) -> None:
    with pytest.raises(errors.SettingInvalid):
        oncemq.connect(url)


def test_addresses_come_as_text_as_a_sequence_or_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert split_urls("tcp://a:1, tcp://b:2") == split_urls(["tcp://a:1", "tcp://b:2"]) == ["tcp://a:1", "tcp://b:2"]
    monkeypatch.delenv("ONCEMQ_URL", raising=False)
    assert split_urls(None) == ["tcp://127.0.0.1:5555"]
    monkeypatch.setenv("ONCEMQ_URL", "ipc:///tmp/here")
    assert split_urls(None) == ["ipc:///tmp/here"]


def test_the_next_address_is_tried(oncemq_broker: BrokerProcess) -> None:
    with oncemq.connect([free_url(), oncemq_broker.url], timeout_s=0.2) as client:
        assert client.put("t", b"x", create=True).offset == 0


def test_a_killed_broker_loses_and_doubles_nothing(oncemq_broker: BrokerProcess) -> None:
    with oncemq_broker.connect(timeout_s=0.5, tries=40) as client:
        subscription = client.subscribe("t", "s")
        handles = []
        for index in range(30_000):
            handles.append(client.put_nowait("t", b"%d" % index))
            if index in (5_000, 20_000):
                oncemq_broker.restart()
        client.flush()
        assert [handle.result().offset for handle in handles] == list(range(30_000))
        got = []
        for message in subscription.messages(timeout_s=0):
            got.append(message.value)
            if len(got) == 10_000:
                oncemq_broker.restart()
        assert got == [b"%d" % index for index in range(30_000)]


def test_a_put_that_timed_out_is_stored_once(oncemq_broker: BrokerProcess) -> None:
    with oncemq_broker.connect(timeout_s=0.1, tries=200) as client:
        client.subscribe("t", "s")
        handle = client.put_nowait("t", b"once")
        oncemq_broker.pause()
        with pytest.raises(TimeoutError):
            handle.result(timeout_s=0.5)
        oncemq_broker.resume()
        assert handle.result().offset == 0
        assert client.put("t", b"next").offset == 1
        assert [message.value for message in client.read("t", start="earliest")] == [b"once", b"next"]


def test_after_the_broker_was_away_the_client_goes_on(oncemq_broker: BrokerProcess) -> None:
    with oncemq_broker.connect(timeout_s=0.1, tries=3) as client:
        subscription = client.subscribe("t", "s")
        client.put("t", b"before")
        oncemq_broker.kill()
        with pytest.raises(errors.BrokerAway):
            client.put("t", b"never")
        with pytest.raises(errors.BrokerAway):
            subscription.get(timeout_s=0)
        oncemq_broker.start()
        assert client.put("t", b"after").offset == 1
        assert [message.value for message in subscription.messages(timeout_s=0)] == [b"before", b"after"]
