"""The layout of the feed, the addresses that are called, and what acks do to a place: without a socket."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from oncemq import errors
from oncemq.client.push_frames import batch_header, decode_header, next_header, topic_of
from oncemq.engine.replies import BatchHead
from oncemq.gateways.push.addresses import check_address
from oncemq.gateways.push.place import Place
from oncemq.gateways.push.settings import PushSettings


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


def place_with(sent: int) -> Place:
    following: Any = SimpleNamespace(topic="orders", topic_id=0, position=sent)
    link: Any = None
    return Place(link, following, "kitchen")


def test_acks_in_any_order_join_up() -> None:
    place = place_with(10)
    place.note([3, 1])
    assert (place.acked, place.has(1), place.has(0)) == (0, True, False)
    place.note([0])
    assert place.acked == 2
    place.note([0, 1], upto=3)
    assert place.acked == 4
    place.note([9, 8])
    place.pass_over(8)
    assert place.acked == 10


def test_an_ack_of_what_was_not_sent_changes_nothing() -> None:
    place = place_with(2)
    for offsets, upto in (([2], 0), ([0, 5], 0), ([], 3)):
        with pytest.raises(errors.OffsetOutOfRange):
            place.note(offsets, upto)
    assert (place.acked, place.has(0)) == (0, False)


def test_acks_that_run_ahead_are_held_up_to_a_bound() -> None:
    place = place_with(100_000)
    for first in range(1, 60_001, 10_000):
        place.note(range(first, first + 10_000))
    assert (place.has(10_000), place.has(10_001)) == (True, False)
    place.note([0])
    assert place.acked == 10_001


def test_settings_that_can_not_be_are_refused() -> None:
    for name in ("a/b", "x" * 65):
        with pytest.raises(errors.SettingInvalid):
            PushSettings(name=name)
