"""The frames of the feed, the addresses of subscribers, and the fields of requests: without sockets."""

from __future__ import annotations

import msgspec
import pytest

from oncemq.gateways.push.messages import decode_request
from oncemq.gateways.push.settings import PushSettings
from oncemq.gateways.push.subscribers.addresses import check_address
from oncemq.protocol import errors
from oncemq.protocol.push_feed import batch_header, decode_header, next_header, topic_of
from oncemq.protocol.replies import BatchHead


def test_headers_are_read_as_they_were_written() -> None:
    head = BatchHead(12, 100, 3, 1_700_000_000_000, 2**64 - 1)
    found = decode_header(batch_header(head, 77))
    assert found is not None
    assert (found.topic_id, found.offset, found.batch) == (77, 12, head)
    beat = decode_header(next_header(13, 1_700_000_000_000, 77))
    assert beat is not None
    assert (beat.topic_id, beat.offset, beat.batch) == (77, 13, None)


@pytest.mark.parametrize("frame", [b"", b"next", b"next 1 2", b"next 1 2 x", b"batch 1 2 3", b"next -1 2 3", b"\xff"])
def test_what_is_no_header_is_not_read(frame: bytes) -> None:
    assert decode_header(frame) is None


def test_a_subscription_names_its_topic() -> None:
    assert [topic_of(each) for each in (b"orders\0", b"\x01orders\0", b"orders", b"")] == ["orders"] * 3 + [None]
    for wrong in (b"\xff\0", b"a\0b\0", b"\0", b"a.*\0", b"x" * 300):
        with pytest.raises(errors.NameInvalid):
            topic_of(wrong)


def test_addresses_of_this_machine_are_called_and_others_only_if_allowed() -> None:
    for address in ("tcp://127.0.0.1:1", "tcp://127.9.9.9:65535", "tcp://[::1]:80", "tcp://localhost:80"):
        check_address(address, any_address=False)
    check_address("tcp://10.0.0.1:80", any_address=True)
    for address in ("tcp://10.0.0.1:80", "tcp://localhost.example:80", "tcp://[::ffff:10.0.0.1]:80"):
        with pytest.raises(errors.Unsupported):
            check_address(address, any_address=False)
    for address in ("tcp://127.0.0.1:65536", "tcp://127.0.0.1:1;tcp://x:1", "tcp://a:1@127.0.0.1:1", "inproc://x"):
        with pytest.raises(errors.Malformed):
            check_address(address, any_address=True)


def test_what_is_published_is_measured_in_bytes() -> None:
    fields = {"type": "publish", "topic": "orders"}
    for origin, key in (("é" * 125, "k"), ("o", "é" * 256)):
        decode_request(msgspec.json.encode(fields | {"origin": origin, "id": key}))
    for origin, key, bound in (("é" * 126, "k", "250 bytes"), ("o", "é" * 257, "512 bytes")):
        with pytest.raises(errors.Malformed, match=bound):
            decode_request(msgspec.json.encode(fields | {"origin": origin, "id": key}))


def test_settings_that_can_not_be_are_refused() -> None:
    for name in ("a/b", "x" * 65):
        with pytest.raises(errors.SettingInvalid):
            PushSettings(name=name)
