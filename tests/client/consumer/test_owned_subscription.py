"""The commands of an owner, and what errors mean for it."""

from __future__ import annotations

import pytest

from oncemq.client.consumer.owned_subscription import Loss, OwnedSubscription, loss_of
from oncemq.protocol import errors
from oncemq.protocol.commands import Ack, Get, Open, Sharing
from oncemq.protocol.replies import OpenReply

OWNED = OwnedSubscription.from_reply("orders", "kitchen", OpenReply(17, 3, 5))


def test_commands_carry_the_topics_id_and_the_epoch_of_the_opening() -> None:
    assert OWNED.get_command(6, 100, 50, 5) == Get(17, "kitchen", 3, 6, 100, 50, 5)
    assert OWNED.ack_command(7) == Ack(17, "kitchen", 3, 7)
    assert OWNED.reopen_command() == Open("orders", "kitchen", former=3)


def test_the_acked_position_only_rises() -> None:
    owned = OwnedSubscription("orders", "kitchen", 17, 3, 5)
    assert owned.note_acked(4) == 4
    assert owned.acked == 5
    owned.note_acked(8)
    assert owned.acked == 8


def test_a_shared_subscription_has_no_owner() -> None:
    with pytest.raises(errors.KindMismatch, match="is shared; take its messages"):
        OwnedSubscription.from_reply("orders", "kitchen", OpenReply(17, 3, 5, Sharing()), "take its messages")


@pytest.mark.parametrize(
    ("error", "loss"),
    [
        (errors.Fenced, Loss.FENCED),
        (errors.SubscriptionFenced, Loss.FENCED),
        (errors.Sought, Loss.SOUGHT),
        (errors.TopicGone, Loss.TOPIC_GONE),
        (errors.TopicUnknown, Loss.TOPIC_GONE),
        (errors.NotSubscribed, Loss.UNSUBSCRIBED),
        (errors.SubscriptionExpired, Loss.EXPIRED),
        (errors.RangeGone, Loss.POSITION_GONE),
        (errors.OffsetOutOfRange, Loss.POSITION_GONE),
        (errors.BrokerAway, None),
        (errors.Busy, None),
    ],
)
def test_what_an_error_means_for_the_opening(error: type[errors.OnceMQError], loss: Loss | None) -> None:
    assert loss_of(error("…")) is loss
