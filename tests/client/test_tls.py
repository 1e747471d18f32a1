"""Clients with TLS and tokens, blocking and asyncio: everything arrives, and a refusal is told at once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from oncemq.auth import x509
from oncemq.auth.certificates import create_authority, create_client, create_server
from oncemq.client.core import handshake
from oncemq.client.credentials import NO_CREDENTIALS, Credentials, TlsSettings
from oncemq.client.runtime.stream import StreamTransport
from oncemq.client.sync import Client
from oncemq.net.tls import client_context
from oncemq.protocol import errors
from tests.client.event_loop import on_event_loop, wait_until
from tests.secure_broker import (
    FakeGate,
    SecureBroker,
    connect,
    connect_async,
    connect_outbox,
    credentials,
    make_keys,
    secure_broker,
    stream_transport,
)

MIB = 2**20
DEADLINE_S = 30.0
#: No test waits for this: the error comes at once.
PATIENT = {"timeout_s": 60.0, "tries": 2}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return make_keys(tmp_path / "keys")


@pytest.fixture
def gate() -> FakeGate:
    return FakeGate()


@pytest.fixture
def broker(tmp_path: Path, keys: Path, gate: FakeGate) -> Iterator[SecureBroker]:
    with secure_broker(tmp_path, keys, gate) as broker:
        yield broker


@pytest.fixture
def plain_broker(tmp_path: Path, gate: FakeGate) -> Iterator[SecureBroker]:
    with secure_broker(tmp_path, None, gate) as broker:
        yield broker


def until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until_s, "this did not happen in time"
        time.sleep(0.002)


# Messages.


@pytest.mark.parametrize("busy_poll_us", [0, 200])
def test_messages_of_all_sizes_arrive(broker: SecureBroker, busy_poll_us: int) -> None:
    small, large = [b"%d" % number for number in range(3000)], [os.urandom(3 * MIB), os.urandom(MIB), b"end"]
    with connect(broker.url, broker.shown(), busy_poll_us=busy_poll_us) as client:
        subscription = client.subscribe("orders", "me")
        for value in small[:100]:
            client.put("orders", value)
        client.put_many("orders", small[100:])
        for value in large:
            client.put("orders", value)
        handles = [client.put_nowait("orders", value) for value in large]
        client.flush()
        assert [handle.result().offset for handle in handles] == [3003, 3004, 3005]
        received = [subscription.get(timeout_s=DEADLINE_S) for _ in range(3006)]
        assert [message.value for message in received if message is not None] == [*small, *large, *large]


@on_event_loop
async def test_messages_of_all_sizes_arrive_on_an_event_loop(broker: SecureBroker) -> None:
    small, large = [b"%d" % number for number in range(3000)], [os.urandom(3 * MIB), os.urandom(MIB), b"end"]
    client = await connect_async(broker.url, broker.shown())
    subscription = await client.subscribe("orders", "me")
    await asyncio.gather(*(client.put("orders", value) for value in small[:100]))
    await client.put_many("orders", small[100:])
    for value in large:
        await client.put("orders", value)
    received = [await subscription.get(timeout_s=DEADLINE_S) for _ in range(3003)]
    assert sorted(message.value for message in received[:100] if message is not None) == sorted(small[:100])
    assert [message.value for message in received[100:] if message is not None] == [*small[100:], *large]
    await client.close()


def test_several_threads_share_a_connection(broker: SecureBroker) -> None:
    with connect(broker.url, broker.shown()) as client:
        client.create_topic("orders")
        client.subscribe("orders", "me")

        def put(number: int) -> None:
            for value in range(50):
                client.put("orders", b"%d" % (number * 1000 + value) + bytes(number * 20_000))

        threads = [threading.Thread(target=put, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.topics()[0].end_offset == 300


def test_an_outbox_sends_through_tls(broker: SecureBroker, tmp_path: Path) -> None:
    with connect(broker.url, broker.shown()) as client, client.subscribe("orders", "me") as subscription:
        with connect_outbox(broker.url, tmp_path / "outbox", broker.shown()) as producer:
            for number in range(20):
                producer.put("orders", b"%d" % number)
            producer.flush()
        received = [subscription.get(timeout_s=DEADLINE_S) for _ in range(20)]
        assert [message.value for message in received if message] == [b"%d" % number for number in range(20)]


def test_a_child_process_does_not_disturb_the_connection_of_its_parent(broker: SecureBroker) -> None:
    client = connect(broker.url, broker.shown())
    client.create_topic("orders")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            client.put("orders", b"from the child")
        except errors.ForkedError:
            client.close()
            del client
            gc.collect()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    for _ in range(10):
        client.put("orders", b"from the parent")
    assert broker.gate is not None
    assert len(broker.gate.asked) == 1, "the connection was lost"
    client.close()


# Certificates.


def failure(broker: SecureBroker, shown: Credentials) -> errors.TlsFailed:
    """Return the error of a client that can't connect. It has tried once, and does so again with each call."""
    with pytest.raises(errors.TlsFailed) as caught:
        connect(broker.url, shown, **PATIENT)
    assert broker.gate is not None
    assert not broker.gate.asked
    return caught.value


def test_a_broker_of_another_authority_is_not_trusted(broker: SecureBroker, tmp_path: Path) -> None:
    create_authority(tmp_path / "other")
    error = failure(broker, credentials("omq-kitchen", tls=TlsSettings(ca=str(tmp_path / "other/ca.pem"))))
    assert error.text == f"the certificate of {broker.url} is not valid: unable to get local issuer certificate"
    until(lambda: broker.counters.get("tls_failed") == 1)


def test_a_broker_of_no_authority_of_the_system_is_not_trusted(broker: SecureBroker) -> None:
    assert "is not valid" in failure(broker, credentials("omq-kitchen", tls=TlsSettings())).text


def test_a_broker_with_another_name_is_not_trusted(broker: SecureBroker, keys: Path) -> None:
    ca = str(keys / "ca.pem")
    error = failure(broker, credentials("omq-kitchen", tls=TlsSettings(ca=ca, server_name="other.example")))
    assert "not valid for 'other.example'" in error.text
    connect(broker.url, credentials("omq-kitchen", tls=TlsSettings(ca=ca, server_name="localhost"))).close()


def test_an_expired_certificate_is_not_trusted(
    broker: SecureBroker, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(x509, "_SIGNED_DAYS", -1)
    monkeypatch.setattr(x509, "_BEFORE", timedelta(days=3))
    create_server(keys, ["127.0.0.1"], replace=True)
    broker.use_certificate()
    assert failure(broker, broker.shown()).text.endswith("is not valid: certificate has expired")


def test_a_context_of_the_user_is_used_as_it_is(broker: SecureBroker, keys: Path) -> None:
    context = client_context(str(keys / "ca.pem"))
    context.check_hostname = False
    connect(broker.url, credentials("omq-kitchen", tls=TlsSettings(context=context, server_name="any"))).close()


def disconnect_all(broker: SecureBroker) -> None:
    stream = broker.network._stream

    def disconnect() -> None:
        for peer in [*stream._by_peer]:
            stream.disconnect(peer)

    broker.call(disconnect)


def test_a_certificate_is_replaced_while_clients_work(broker: SecureBroker, keys: Path) -> None:
    is_over = threading.Event()
    put_counts: list[int] = []

    def put(client: Client) -> None:
        count = 0
        while not is_over.is_set():
            client.put("orders", b"%d" % count)
            count += 1
        put_counts.append(count)

    clients = [connect(broker.url, broker.shown()) for _ in range(2)]
    clients[0].create_topic("orders", retain_ms=60_000)
    threads = [threading.Thread(target=put, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for _ in range(3):
        create_server(keys, ["127.0.0.1"], replace=True)
        broker.use_certificate()
        connect(broker.url, broker.shown()).close()
        # Those that work connect again, too.
        disconnect_all(broker)
    is_over.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(put_counts) == 2, "a put failed"
    assert clients[0].topics()[0].end_offset == sum(put_counts)
    for client in clients:
        client.close()


def test_an_authority_is_replaced_while_a_client_works(broker: SecureBroker, keys: Path) -> None:
    client = connect(broker.url, broker.shown())
    client.create_topic("orders")
    create_authority(keys, replace=True)
    create_server(keys, ["127.0.0.1"], replace=True)
    broker.use_certificate()
    disconnect_all(broker)
    client.put("orders", b"one pizza")
    client.close()


@on_event_loop
async def test_a_certificate_that_is_not_valid_is_told_at_once_on_an_event_loop(
    broker: SecureBroker, tmp_path: Path
) -> None:
    create_authority(tmp_path / "other")
    shown = credentials("omq-kitchen", tls=TlsSettings(ca=str(tmp_path / "other/ca.pem")))
    with pytest.raises(errors.TlsFailed, match="is not valid"):
        await connect_async(broker.url, shown, **PATIENT)


def test_a_client_may_log_in_with_its_certificate(broker: SecureBroker, keys: Path, gate: FakeGate) -> None:
    broker.use_certificate(client_certificates=True)
    own = create_client(keys, "client-7")
    tls = TlsSettings(ca=str(keys / "ca.pem"), certificate=str(own.certificate), key=str(own.key))
    with connect(broker.url, credentials(tls=tls)) as client:
        client.create_topic("orders")
    assert gate.asked == [("certificate", "client-7", "127.0.0.1")]
    with connect(broker.url, credentials("omq-kitchen", tls=tls)):
        assert gate.asked[1:] == [("token", "omq-kitchen", "127.0.0.1")]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_clients_certificate_that_the_broker_does_not_accept_is_told_at_once(
    broker: SecureBroker, keys: Path, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    broker.use_certificate(client_certificates=True)
    create_authority(tmp_path / "other")
    own = create_client(tmp_path / "other", "client-7")
    context = client_context(str(keys / "ca.pem"), str(own.certificate), str(own.key))
    context.maximum_version = version
    assert "UNKNOWN_CA" in failure(broker, credentials(tls=TlsSettings(context=context))).text


# A broker that does not complete its handshake.


@pytest.mark.parametrize("answer", [None, b"", b"\x16\x03\x03\x00\x7a\x02"], ids=["silent", "closes", "half"])
def test_a_broker_that_does_not_complete_a_handshake_is_away(keys: Path, answer: bytes | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = server.accept()
                    accepted.append(sock)
                    if answer is not None:
                        sock.recv(65536)
                        sock.sendall(answer)
                        sock.close()

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        shown = credentials("omq-kitchen", tls=TlsSettings(ca=str(keys / "ca.pem")))
        with pytest.raises(errors.BrokerAway):
            connect(f"oncemq://127.0.0.1:{server.getsockname()[1]}", shown, timeout_s=0.1, tries=2)
        server.shutdown(socket.SHUT_RDWR)
        serving.join(DEADLINE_S)
        assert len(accepted) >= 2, "it has not tried again"
        for sock in accepted:
            sock.close()


def test_the_bytes_of_requests_are_counted_without_those_of_tls(broker: SecureBroker) -> None:
    transport = stream_transport([broker.url], broker.shown())
    transport.send([bytes(100_000)])
    transport.send([b"no request"])
    replies = 0

    def is_done() -> bool:
        nonlocal replies
        replies += transport.receive() is not None
        return replies == 2

    until(is_done)
    until(lambda: 100_000 + 10 + 24 <= acked(transport) <= 100_000 + 10 + 25)
    transport.close()


def acked(transport: StreamTransport) -> int:
    wire = transport.wire_bytes()
    assert wire is not None
    return wire.acked


# One side without TLS.


def test_a_client_with_tls_at_a_broker_without_it_is_told_so(plain_broker: SecureBroker, keys: Path) -> None:
    error = failure(plain_broker, credentials("omq-kitchen", tls=TlsSettings(ca=str(keys / "ca.pem"))))
    assert error.text == f"{plain_broker.url} does not use TLS"


def test_a_client_without_tls_at_a_broker_with_it_is_told_so(broker: SecureBroker) -> None:
    for shown in (credentials("omq-kitchen"), NO_CREDENTIALS):
        assert "this address needs TLS: connect with tls=…" in failure(broker, shown).text


@on_event_loop
async def test_one_side_without_tls_on_an_event_loop(broker: SecureBroker) -> None:
    with pytest.raises(errors.TlsFailed, match="this address needs TLS"):
        await connect_async(broker.url, NO_CREDENTIALS, **PATIENT)


def test_on_one_machine_a_token_needs_no_encryption(plain_broker: SecureBroker, gate: FakeGate) -> None:
    for url in (plain_broker.url, plain_broker.unix_url):
        connect(url, credentials("omq-kitchen")).close()
    assert [asked[0] for asked in gate.asked] == ["token"] * 2


def test_a_unix_socket_is_not_encrypted_whatever_the_client_wants(broker: SecureBroker) -> None:
    connect(broker.unix_url, broker.shown()).close()


# Tokens.


@pytest.mark.parametrize("token", ["", "omq-wrong"])
def test_without_a_valid_token_the_client_is_told_at_once(broker: SecureBroker, gate: FakeGate, token: str) -> None:
    with pytest.raises(errors.Unauthenticated, match="has refused the connection: the credentials are not valid"):
        connect(broker.url, broker.shown(token), **PATIENT)
    assert len(gate.asked) == 1


@on_event_loop
async def test_without_a_valid_token_the_client_is_told_at_once_on_an_event_loop(broker: SecureBroker) -> None:
    for token in ("", "omq-wrong"):
        with pytest.raises(errors.Unauthenticated):
            await connect_async(broker.url, broker.shown(token), **PATIENT)
    assert broker.gate is not None
    assert len(broker.gate.asked) == 2


def test_a_user_with_too_many_connections_is_told_at_once(broker: SecureBroker, gate: FakeGate) -> None:
    gate.connections_max = 1
    with connect(broker.url, broker.shown()), pytest.raises(errors.QuotaReached, match="too many connections"):
        connect(broker.url, broker.shown(), **PATIENT)
    until(lambda: not gate.inside["kitchen/one"])
    connect(broker.url, broker.shown()).close()


def test_a_client_whose_token_was_removed_gets_an_error_for_each_call_until_it_is_valid_again(
    broker: SecureBroker, gate: FakeGate
) -> None:
    with connect(broker.url, broker.shown(), **PATIENT) as client:
        client.create_topic("orders")
        subscription = client.subscribe("orders", "me")
        broker.drop("kitchen/one")
        for _ in range(3):
            asked = len(gate.asked)
            with pytest.raises(errors.Unauthenticated):
                client.put("orders", b"one pizza")
            assert len(gate.asked) == asked + 1, "it did not try exactly once"
        with pytest.raises(errors.Unauthenticated):
            subscription.get(timeout_s=DEADLINE_S)
        gate.revoked.clear()
        client.put("orders", b"one pizza")
        message = subscription.get(timeout_s=DEADLINE_S)
        assert message is not None
        assert message.offset == 0


def test_a_get_that_waits_ends_when_the_token_is_removed(broker: SecureBroker, gate: FakeGate) -> None:
    client = connect(broker.url, broker.shown(), **PATIENT)
    subscription = client.subscribe("orders", "me")
    caught: list[BaseException] = []

    def get() -> None:
        try:
            subscription.get(timeout_s=DEADLINE_S)
        except errors.OnceMQError as error:
            caught.append(error)

    getting = threading.Thread(target=get)
    getting.start()
    time.sleep(0.05)
    broker.drop("kitchen/one")
    getting.join(DEADLINE_S / 2)
    assert [type(error) for error in caught] == [errors.Unauthenticated]
    gate.revoked.clear()
    client.close()


@on_event_loop
async def test_tasks_get_an_error_when_the_token_is_removed_and_no_further_attempts_are_made(
    broker: SecureBroker, gate: FakeGate
) -> None:
    client = await connect_async(broker.url, broker.shown(), **PATIENT)
    subscription = await client.subscribe("orders", "me")
    getting = asyncio.ensure_future(subscription.get(timeout_s=DEADLINE_S))
    await asyncio.sleep(0.05)
    await asyncio.to_thread(broker.drop, "kitchen/one")
    with pytest.raises(errors.Unauthenticated):
        await getting
    asked = len(gate.asked)
    await asyncio.sleep(0.3)
    assert len(gate.asked) == asked, "an idle client has tried again"
    with pytest.raises(errors.Unauthenticated):
        await client.put("orders", b"one pizza")
    gate.revoked.clear()
    await client.put("orders", b"one pizza")
    await client.close()


def test_a_token_is_replaced_while_a_client_works(broker: SecureBroker, gate: FakeGate, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("omq-0\n")
    gate.tokens["omq-0"] = "kitchen/0"
    shown = credentials(token_file=str(path), tls=broker.tls)
    client = connect(broker.url, shown)
    client.create_topic("orders", retain_ms=60_000)
    is_over = threading.Event()
    counts: list[int] = []

    def put() -> None:
        count = 0
        while not is_over.is_set():
            client.put("orders", b"%d" % count)
            count += 1
        counts.append(count)

    putting = threading.Thread(target=put)
    putting.start()
    for number in range(1, 5):
        gate.tokens[f"omq-{number}"] = f"kitchen/{number}"
        (tmp_path / "new").write_text(f"omq-{number}\n")
        (tmp_path / "new").rename(path)
        broker.drop(f"kitchen/{number - 1}")
        until(lambda: gate.inside[f"kitchen/{number}"] == 1)  # noqa: B023
    is_over.set()
    putting.join(DEADLINE_S)
    assert len(counts) == 1, "a put failed"
    assert client.topics()[0].end_offset == counts[0]
    client.close()


def test_a_token_that_is_replaced_during_the_attempt_leads_to_another_one_at_once(
    broker: SecureBroker, gate: FakeGate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text("omq-old")
    admit = gate.admit

    def replace(kind: str, credential: str, address: str) -> str:
        path.write_text("omq-kitchen")
        return admit(kind, credential, address)

    monkeypatch.setattr(gate, "admit", replace)
    connect(broker.url, credentials(token_file=str(path), tls=broker.tls), **PATIENT).close()
    assert [asked[1] for asked in gate.asked] == ["omq-old", "omq-kitchen"]


def test_a_file_of_a_token_that_is_missing_for_a_moment_does_no_harm(
    broker: SecureBroker, gate: FakeGate, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text("omq-kitchen")
    with connect(broker.url, credentials(token_file=str(path), tls=broker.tls)) as client:
        client.create_topic("orders")
        path.unlink()
        disconnect_all(broker)
        threading.Timer(0.2, lambda: path.write_text("omq-waiter")).start()
        client.put("orders", b"one pizza")
        assert gate.asked[-1][1] == "omq-waiter"
        path.unlink()
    with pytest.raises(errors.SettingInvalid, match="the token can't be read"):
        connect(broker.url, credentials(token_file=str(path), tls=broker.tls))


def test_an_outbox_keeps_everything_until_its_token_is_valid(
    broker: SecureBroker, gate: FakeGate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "_REFUSED_PAUSE_MS", 100.0)
    with connect(broker.url, broker.shown()) as client, client.subscribe("orders", "me") as subscription:
        with connect_outbox(broker.url, tmp_path / "outbox", broker.shown("omq-later")) as producer:
            producer.put("orders", b"one pizza")
            until(lambda: sum(asked[1] == "omq-later" for asked in gate.asked) >= 2)
            with pytest.raises(errors.Unauthenticated):
                producer.topics()
            gate.tokens["omq-later"] = "later/3"
            producer.flush(timeout_s=DEADLINE_S)
        message = subscription.get(timeout_s=DEADLINE_S)
        assert message is not None
        assert message.value == b"one pizza"


# Several addresses.


def test_a_broker_that_refuses_is_left_for_one_that_does_not(tmp_path: Path, keys: Path, gate: FakeGate) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    stern = FakeGate({})
    with secure_broker(tmp_path / "a", keys, stern) as one, secure_broker(tmp_path / "b", keys, gate) as other:
        with connect([one.url, other.url], one.shown(), **PATIENT) as client:
            client.create_topic("orders")
        assert len(stern.asked) == 1
        gate.tokens.clear()
        with pytest.raises(errors.Unauthenticated):
            connect([one.url, other.url], one.shown(), **PATIENT)
        assert len(stern.asked) == 2


def test_if_the_other_broker_is_away_the_refusal_is_told(broker: SecureBroker) -> None:
    with pytest.raises(errors.Unauthenticated):
        connect([broker.url, "oncemq://127.0.0.1:1"], broker.shown("omq-wrong"), **PATIENT)


# Settings.


@pytest.mark.parametrize("url", ["oncemq://192.0.2.1:5554", "oncemq://broker.example", "oncemq://[2001:db8::1]:5554"])
def test_a_token_is_never_sent_over_a_network_without_encryption(url: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("omq-kitchen")
    for shown in (credentials("omq-kitchen"), credentials(token_file=str(tmp_path / "token"))):
        with pytest.raises(errors.SettingInvalid, match="is not encrypted") as caught:
            connect([url, "oncemq://127.0.0.1:5554"], shown)
        assert "omq-kitchen" not in caught.value.text


def test_settings_of_tls_that_cannot_be_used_are_told_before_anything_is_opened(keys: Path) -> None:
    ca = str(keys / "ca.pem")
    for tls, why in (
        (TlsSettings(ca="/missing.pem"), "/missing.pem can't be read"),
        (TlsSettings(ca=ca, certificate=ca, key=str(keys / "ca.pem")), "are not a certificate and its key"),
        (TlsSettings(ca=ca, server_name="." + "a" * 300), "can't be the name of a broker"),
        (TlsSettings(context=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)), "the context of TLS can't be used"),
    ):
        with pytest.raises(errors.SettingInvalid, match=why):
            connect("oncemq://127.0.0.1:5554", credentials(tls=tls))


@on_event_loop
async def test_an_idle_client_on_an_event_loop_finds_its_way_back(broker: SecureBroker, gate: FakeGate) -> None:
    client = await connect_async(broker.url, broker.shown())
    await asyncio.to_thread(disconnect_all, broker)
    await wait_until(lambda: len(gate.asked) == 2)
    await client.create_topic("orders")
    assert len(gate.asked) == 2
    await client.close()
