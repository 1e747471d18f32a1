"""Replies have the type that their command asks for."""

from __future__ import annotations

import pytest

from oncemq.protocol import errors
from oncemq.protocol.replies import AckReply, Done, expect


def test_an_expected_reply_is_returned() -> None:
    reply = Done()
    assert expect(reply, Done) is reply


@pytest.mark.parametrize("reply", [Done(), None])
def test_another_reply_is_a_bug_of_the_broker(reply: Done | None) -> None:
    with pytest.raises(errors.BrokerBug, match="instead of AckReply"):
        expect(reply, AckReply)
