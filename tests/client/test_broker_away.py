"""What a client does when its broker is killed or paused, or never ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import oncemq
from oncemq.client.runtime.transport import split_urls
from oncemq.protocol import errors
from oncemq.testing.broker_process import BrokerProcess, free_url
from tests.transports import EACH_TRANSPORT, transport_of


def test_a_broker_that_does_not_answer_is_reported() -> None:
    url = free_url()
    with pytest.raises(errors.BrokerAway, match=rf"^no answer from {url} \(2 tries in 0.1 s\)$"):
        oncemq.connect(url, timeout_s=0.05, tries=2)
    with pytest.raises(errors.BrokerAway, match=r"\(1 try in 0.05 s\)$"):
        oncemq.connect(url, timeout_s=0.05, tries=1)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://localhost",
        "nonsense",
        "tcp://",
        ["memory:", "memory:2"],
        "file:",
        "file://",
        "tcp://localhost",
        "tcp://localhost:0",
        "tcp://localhost:65536",
        "tcp://localhost:http",
    ],
)
def test_an_invalid_address_is_refused(url: str | list[str]) -> None:
    with pytest.raises(errors.SettingInvalid):
        oncemq.connect(url)


@pytest.mark.parametrize(
    "setting",
    [{"name": ""}, {"label": ""}, {"linger_ms": -1}, {"buffer_bytes": 0}, {"tries": 0}, {"batch_bytes": 0}],
    ids=str,
)
def test_an_invalid_option_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(errors.SettingInvalid):
        oncemq.connect("memory:", **setting)


def test_a_name_that_can_not_be_sent_is_refused() -> None:
    with pytest.raises(errors.NameInvalid, match="client's name"):
        oncemq.connect("memory:", name="\ud800")
    with pytest.raises(TypeError, match="not int"):
        oncemq.connect("memory:", name=5)  # type: ignore[call-overload]


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "100% home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.chdir(tmp_path)
    with oncemq.connect("file:~/queue") as client:
        client.create_topic("t")
    assert (home / "queue").is_dir()
    assert not (tmp_path / "~").exists()


def test_addresses_come_as_text_or_as_a_sequence() -> None:
    assert split_urls("tcp://a:1, tcp://b:2") == split_urls(["tcp://a:1", "tcp://b:2"]) == ["tcp://a:1", "tcp://b:2"]


@EACH_TRANSPORT
def test_the_next_address_is_tried(oncemq_broker: BrokerProcess) -> None:
    with oncemq.connect([free_url(transport_of(oncemq_broker)), oncemq_broker.url], timeout_s=0.2) as client:
        assert client.put("t", b"x", create=True).offset == 0


@EACH_TRANSPORT
def test_a_killed_broker_loses_and_repeats_nothing(oncemq_broker: BrokerProcess) -> None:
    with oncemq_broker.connect(timeout_s=0.5, tries=40) as client:
        subscription = client.subscribe("t", "s")
        handles = []
        for index in range(9_000):
            handles.append(client.put_nowait("t", b"%d" % index))
            if index in (1_500, 6_000):
                oncemq_broker.restart()
        client.flush()
        assert [handle.result().offset for handle in handles] == list(range(9_000))
        got = []
        for message in subscription.messages(timeout_s=0):
            got.append(message.value)
            if len(got) == 3_000:
                oncemq_broker.restart()
        assert got == [b"%d" % index for index in range(9_000)]


@EACH_TRANSPORT
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


@EACH_TRANSPORT
def test_after_the_broker_was_away_the_client_continues(oncemq_broker: BrokerProcess) -> None:
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
