"""The parts of a shared subscription: ranges, redeliveries, keys and leases."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from oncemq.engine.snapshot.shared_image import capture_shared, restore_shared
from oncemq.engine.state.offset_ranges import AckedRanges, Spans, merged
from oncemq.engine.state.shared_subscription import KeyOrder, Lease, Redeliveries, SharedState
from oncemq.protocol.commands import Sharing

SEEDS = st.integers(0, 1_000_000)


def offsets(spans: Spans) -> dict[int, int]:
    return {offset: tries for first, end, tries in spans for offset in range(first, end)}


# Ranges.


@given(SEEDS)
def test_acked_ranges_know_their_floor_and_count(seed: int) -> None:
    rng = random.Random(seed)
    done, naive, at = AckedRanges(3), set(range(3)), 3
    pieces = []
    while at < 60:
        end = at + rng.randint(1, 4)
        pieces.append((at, end))
        at = end
    rng.shuffle(pieces)
    for first, end in pieces[: rng.randint(0, len(pieces))]:
        done.add(first, end)
        naive |= set(range(first, end))
        floor = next(offset for offset in range(100) if offset not in naive)
        assert done.floor == floor
        assert done.count == len([offset for offset in naive if offset >= floor])
    held = {offset for first, end in done.ranges() for offset in range(first, end)}
    assert held == {offset for offset in naive if offset >= done.floor}
    assert AckedRanges(done.floor, done.ranges()).ranges() == done.ranges()


@given(SEEDS)
def test_raising_the_floor_counts_unacked_messages(seed: int) -> None:
    rng = random.Random(seed)
    naive = {offset for offset in range(40) if rng.random() < 0.5}
    done = AckedRanges(0)
    for offset in sorted(naive, key=lambda _: rng.random()):
        done.add(offset, offset + 1)
    to = rng.randint(done.floor, 45)
    assert done.advance(to) == len(set(range(to)) - naive)
    naive |= set(range(to))
    assert done.floor == next(offset for offset in range(100) if offset not in naive)
    assert done.count == len([offset for offset in naive if offset > done.floor])


def test_acks_that_arrive_in_order_leave_no_ranges_behind() -> None:
    done = AckedRanges(0)
    for offset in range(1_000):
        done.add(offset, offset + 1)
    assert (done.floor, done.count, done.ranges()) == (1_000, 0, [])


def test_acks_above_a_gap_are_one_range() -> None:
    done = AckedRanges(0)
    for offset in range(999, 0, -1):
        done.add(offset, offset + 1)
    assert done.ranges() == [(1, 1_000)]
    done.add(0, 1)
    assert (done.floor, done.ranges()) == (1_000, [])


@given(SEEDS)
def test_remove_takes_out_exactly_its_range(seed: int) -> None:
    rng = random.Random(seed)
    starts = sorted(rng.sample(range(40), 8))
    spans = Spans((first, end, rng.randint(1, 3)) for first, end in zip(starts[::2], starts[1::2], strict=True))
    for _ in range(6):
        before = offsets(spans)
        first = rng.randint(0, 40)
        end = first + rng.randint(1, 10)
        inside = {offset: tries for offset, tries in before.items() if first <= offset < end}
        assert offsets(Spans(spans.within(first, end))) == inside
        assert offsets(Spans(spans.remove(first, end))) == inside
        assert offsets(spans) == {offset: tries for offset, tries in before.items() if offset not in inside}
        assert spans.count == len(offsets(spans))
        assert list(spans) == sorted(spans)


def test_ranges_that_touch_or_overlap_are_merged() -> None:
    assert merged([(5, 7), (0, 2), (2, 4), (6, 9)]) == ((0, 4), (5, 4))
    assert merged([]) == ()


# Redeliveries.


def test_ready_ranges_come_in_the_order_of_their_offsets() -> None:
    returned = Redeliveries()
    order = list(range(0, 200, 2))
    random.Random(1).shuffle(order)
    for first in order:
        returned.add(first, first + 1, 1, 0)
    assert [first for first, _, _ in returned.ready(0)] == list(range(0, 200, 2))
    assert [first for first, _, _ in returned.ready(0)] == list(range(0, 200, 2))


def test_a_delayed_range_is_not_ready_before_its_time() -> None:
    returned = Redeliveries()
    returned.add(0, 5, 2, 1_000)
    returned.add(7, 9, 1, 0)
    assert list(returned.ready(999)) == [(7, 9, 1)]
    assert returned.next_ms() == 1_000
    assert list(returned.ready(1_000)) == [(0, 5, 2), (7, 9, 1)]
    assert returned.next_ms() is None


def test_removing_a_part_leaves_the_rest_of_its_range() -> None:
    returned = Redeliveries()
    returned.add(0, 5, 1, 0)
    returned.add(5, 9, 2, 0)
    returned.remove(0, 7)
    assert list(returned.ready(0)) == [(7, 9, 2)]
    assert returned.count == 2


def test_a_range_that_is_delayed_again_uses_its_new_time() -> None:
    returned = Redeliveries()
    for first in (0, 5, 6):
        returned.add(first, first + 1, 1, 0)
    returned.remove(5, 6)
    returned.add(5, 6, 2, 500)
    assert [first for first, _, _ in returned.ready(0)] == [0, 6]
    assert list(returned.ready(500)) == [(0, 1, 1), (5, 6, 2), (6, 7, 1)]


# Keys.


def test_a_key_releases_one_message_at_a_time_in_order() -> None:
    keys = KeyOrder()
    keys.occupy(0, 77)
    keys.block(3, 77)
    keys.block(5, 77)
    assert keys.is_busy(77)
    assert not keys.is_busy(78)
    assert list(keys.release(0, 1)) == [3]
    assert list(keys.release(0, 3)) == []
    assert list(keys.release(3, 4)) == [5]
    assert (list(keys.release(5, 6)), keys.is_busy(77), keys.blocked) == ([], False, 0)


def test_messages_without_a_key_are_never_blocked() -> None:
    keys = KeyOrder()
    keys.occupy(0, 0)
    assert not keys.is_busy(0)
    assert list(keys.release(0, 1)) == []


# Complete state.


def shared_with(*spans: tuple[int, int, int], token: int = 9) -> SharedState:
    shared = SharedState(Sharing(lease_ms=1_000), 0)
    shared.next_offset = max(end for _, end, _ in spans)
    shared.update_member("m", 1, 100)
    shared.add_lease(Lease(token, "m", 1, 1_100, Spans(spans)))
    return shared


def test_a_lease_ends_with_its_last_message() -> None:
    shared = shared_with((0, 4, 1))
    shared.remove_from_lease(9, 0, 3, 200)
    assert (shared.leased, shared.members["m"].tokens) == (1, {1: 9})
    shared.remove_from_lease(9, 3, 4, 300)
    assert (shared.leased, shared.leases, shared.members["m"].tokens) == (0, {}, {})
    assert shared.members["m"].active_ms == 300


def test_a_leaving_member_returns_all_messages() -> None:
    shared = shared_with((0, 4, 1), (6, 7, 3))
    shared.remove_member("m", 200)
    assert list(shared.redeliveries.ready(0)) == [(0, 4, 1), (6, 7, 3)]
    assert (shared.leased, shared.members) == (0, {})


def test_dropped_messages_leave_leases_and_redeliveries() -> None:
    shared = shared_with((0, 4, 1), (6, 10, 1))
    shared.remove_from_lease(9, 1, 2, 0)
    shared.ack(1, 2)
    shared.redeliveries.add(4, 6, 1, 0)
    assert shared.drop_below(7) == 6
    assert (shared.floor(), shared.leased, list(shared.redeliveries.ready(0))) == (7, 3, [])
    assert list(shared.leases[9].spans) == [(7, 10, 1)]
    assert shared.drop_below(5) == 0
    assert shared.drop_below(20) == 13
    assert (shared.next_offset, shared.floor(), shared.leases) == (20, 20, {})


def test_a_dropped_message_frees_its_key() -> None:
    shared = shared_with((0, 1, 1))
    shared.next_offset = 10
    shared.keys.occupy(0, 77)
    shared.keys.block(2, 77)
    shared.keys.block(8, 77)
    shared.drop_below(5)
    assert list(shared.redeliveries.ready(0)) == [(8, 9, 0)]
    assert shared.keys.blocked == 0


def test_a_seek_discards_everything_except_member_numbers() -> None:
    shared = shared_with((0, 4, 1))
    shared.redeliveries.add(4, 6, 1, 0)
    shared.seek(2)
    assert (shared.next_offset, shared.floor(), shared.leased, shared.redeliveries.count) == (2, 2, 0, 0)
    assert shared.members["m"].last_number == 1
    assert not shared.members["m"].tokens


def test_an_image_restores_everything() -> None:
    shared = shared_with((0, 4, 1), (6, 7, 3))
    shared.next_offset = 12
    shared.remove_from_lease(9, 2, 3, 0)
    shared.ack(2, 3)
    shared.redeliveries.add(7, 9, 2, 500)
    shared.keys.occupy(7, 1 << 63)
    shared.keys.block(10, 1 << 63)
    image = capture_shared(shared)
    replica = restore_shared(image)
    assert capture_shared(replica) == image
    assert replica.next_ms() == shared.next_ms()
    for each in (shared, replica):
        each.redeliveries.remove(7, 8)
        each.ack(7, 8)
    assert list(shared.redeliveries.ready(500)) == list(replica.redeliveries.ready(500)) == [(8, 9, 2), (10, 11, 0)]


def test_settled_leases_do_not_accumulate_in_the_queue() -> None:
    shared = shared_with((0, 1, 1), token=1)
    for token in range(2, 4_000):
        shared.add_lease(Lease(token, "m", token, 86_400_000, Spans([(token, token + 1, 1)])))
        shared.remove_from_lease(token, token, token + 1, 0)
    assert len(shared.leases_due) < 1_500
