"""Where seeks lie between the owners of a subscription."""

from __future__ import annotations

from typing import Any

from oncemq.spark.audit.periods import find_periods


def _line(kind: str, at_ms: int, **fields: Any) -> dict[str, Any]:
    defaults = {"broker": "b", "topic_id": 7, "topic": "t", "subscriber": "s", "pattern": "", "shared": False}
    return {"kind": kind, "at_ms": at_ms, "sent_ms": at_ms - 5, "session": "c", "number": at_ms, **defaults, **fields}


def _opened(epoch: int, at_ms: int, **fields: Any) -> dict[str, Any]:
    return _line("opened", at_ms, epoch=epoch, acked=0, **fields)


def _eras(*lines: dict[str, Any]) -> list[tuple[int, int, int]]:
    return [(each.epoch, each.era, each.generation) for each in find_periods(lines)]


def test_owners_without_a_seek_between_them_are_one_period() -> None:
    assert _eras(_opened(3, 1_000), _opened(9, 50_000)) == [(3, 0, 0), (9, 0, 0)]


def test_a_seek_between_two_owners_begins_an_era() -> None:
    seek = _line("moved", 20_000, what="seek")
    assert _eras(_opened(3, 1_000), seek, _opened(9, 50_000), _opened(12, 60_000)) == [
        (3, 0, 0),
        (9, 1, 1),
        (12, 1, 1),
    ]


def test_another_subscribers_seek_changes_nothing() -> None:
    seek = _line("moved", 20_000, what="seek", subscriber="other")
    assert _eras(_opened(3, 1_000), seek, _opened(9, 50_000)) == [(3, 0, 0), (9, 0, 0)]


def test_an_owner_who_was_told_of_a_seek_needs_no_clock() -> None:
    displaced = _line("displaced", 90_000, epoch=3)
    assert _eras(_opened(3, 1_000), displaced, _opened(9, 50_000)) == [(3, 0, 0), (9, 1, 1)]


def test_a_seek_without_an_answer_may_have_happened() -> None:
    moving = _line("moving", 20_000, what="seek", number=5)
    assert _eras(_opened(3, 1_000), moving, _opened(9, 50_000)) == [(3, 0, 0), (9, 0, 1)]
    stayed = _line("stayed", 21_000, number=5)
    assert _eras(_opened(3, 1_000), moving, stayed, _opened(9, 50_000)) == [(3, 0, 0), (9, 0, 0)]


def test_each_epoch_of_a_shared_subscription_is_an_era() -> None:
    assert _eras(_opened(3, 1_000, shared=True), _opened(9, 2_000, shared=True)) == [(3, 0, 0), (9, 1, 1)]


def test_a_subscription_is_known_from_when_it_was_made() -> None:
    made = _line("subscribed", 500, acked=4)
    [first, second] = find_periods([made, _opened(3, 1_000)])
    assert (first.epoch, first.created_at, second.era, second.generation) == (0, 4, 0, 0)


def test_one_that_is_made_again_begins_an_era() -> None:
    again = _line("subscribed", 20_000, acked=0)
    assert _eras(_line("subscribed", 500, acked=4), _opened(3, 1_000), again, _opened(9, 50_000)) == [
        (0, 0, 0),
        (3, 0, 0),
        (9, 1, 1),
    ]


def test_a_pattern_has_one_epoch_on_all_its_topics() -> None:
    [period] = find_periods([_opened(3, 1_000, topic_id=0, topic="t.*", pattern="t.*")])
    assert period.owned == ("b", 0, "s", "t.*")
