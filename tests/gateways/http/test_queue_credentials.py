"""The library of the queue with tokens and certificates."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncemq.auth.tokens import new_token
from oncemq.gateways.http.framework import logins
from oncemq.http import Consumer, Producer
from oncemq.http.credentials import Token
from oncemq.http.requests import GatewayRequests
from oncemq.protocol import errors
from tests.gateways.hosts import LoopThread
from tests.gateways.http.certificates import Authority
from tests.gateways.http.queue import Straight
from tests.gateways.http.secured import Accounts, Secured, accounts, secured
from tests.gateways.http.served import Served, serving

assert accounts
assert secured


def test_a_producer_and_a_consumer_have_tokens(secured: Secured) -> None:
    token = secured.accounts.token("bob")
    transport = Straight(secured)
    with Producer(token=token, transport=transport) as producer, Consumer(token=token, transport=transport) as consumer:
        producer.register("bobs.meals")
        consumer.register("bobs.meals")
        producer.enqueue("bobs.meals", "one pizza")
        assert consumer.dequeue("bobs.meals") == "one pizza"
        with pytest.raises(errors.Forbidden):
            producer.register("others")
    for wrong in ("", "omq_wrong"):
        with pytest.raises(errors.Unauthenticated):
            Producer(token=wrong, transport=transport).list_topics()


def test_the_token_may_come_from_the_environment(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ONCEMQ_TOKEN", secured.accounts.token("bob"))
    assert Producer(transport=Straight(secured)).list_topics() == []
    monkeypatch.delenv("ONCEMQ_TOKEN")
    (tmp_path / "token").write_text(secured.accounts.token("bob") + "\n")
    monkeypatch.setenv("ONCEMQ_TOKEN_FILE", str(tmp_path / "token"))
    assert Consumer(transport=Straight(secured)).list_topics() == []


def test_a_token_in_a_file_is_replaced_without_an_error(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(logins, "REFUSED_S", 0.0)
    file = tmp_path / "token"
    file.write_text(secured.accounts.token("bob"))
    with Producer(token_file=str(file), transport=Straight(secured)) as producer:
        producer.register("bobs.meals")
        Consumer(token_file=str(file), transport=Straight(secured)).register("bobs.meals")
        for number in range(3):
            secured.accounts.tokens["bob"].append(new_token())
            secured.accounts.reload()
            file.write_text(secured.accounts.token("bob"))
            os.utime(file, ns=(number, number))
            del secured.accounts.tokens["bob"][0]
            secured.accounts.reload()
            assert producer.enqueue("bobs.meals", "one pizza") == number
        file.unlink()
        with pytest.raises(errors.SettingInvalid, match="can't be read"):
            producer.list_topics()


@pytest.mark.parametrize("url", ["http://broker.example:8002", "http://10.0.0.1:8002", "http://[2001:db8::1]:8002"])
def test_a_token_is_not_sent_unencrypted_to_another_machine(url: str) -> None:
    with pytest.raises(errors.SettingInvalid, match="unencrypted"):
        Producer(["http://127.0.0.1:8002", url], token="omq_x")
    Producer(url, token="").close()
    Producer(url.replace("http:", "https:"), token="omq_x").close()
    for own in ("http://127.0.0.1:8002", "http://localhost:8002", "http://[::1]:8002"):
        Producer(own, token="omq_x").close()


def test_nothing_that_is_shown_contains_the_token(secured: Secured) -> None:
    token = secured.accounts.token("carol")
    producer = Producer(token=token, transport=Straight(secured))
    with pytest.raises(errors.Forbidden) as refused:
        producer.create_topic("new")
    assert token not in repr(refused.value) + repr(vars(producer)) + repr(Token(token, None))
    assert token not in repr(vars(GatewayRequests(token=Token(token, None))))


@pytest.fixture
def encrypted(accounts: Accounts, tmp_path: Path) -> Iterator[Served]:
    Authority(tmp_path).issue(tmp_path / "keys", "gateway")
    loop = LoopThread()
    serving_now = serving(keys=str(tmp_path / "keys"))
    yield loop.call(serving_now.__aenter__())
    loop.call(serving_now.__aexit__(None, None, None))
    loop.stop()


def test_the_certificate_of_a_gateway_is_checked(
    encrypted: Served, accounts: Accounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, authority = accounts.token("bob"), str(tmp_path / "ca.pem")
    assert Producer(encrypted.url, token=token, verify=authority).list_topics() == []
    assert Producer(encrypted.url, token=token, verify=False).list_topics() == []
    with pytest.raises(errors.BrokerAway, match="certificate"):
        Producer(encrypted.url, token=token, total_timeout_s=0).list_topics()
    monkeypatch.setenv("ONCEMQ_TLS", authority)
    assert Consumer(encrypted.url, token=token).list_topics() == []
    with pytest.raises(errors.SettingInvalid, match="authority"):
        Producer(encrypted.url, verify=str(tmp_path / "none.pem"))
