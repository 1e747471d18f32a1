"""Planted bugs in the rights and owners of a broker with users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncemq.auth.operations import NEEDS
from oncemq.broker.group_builder import GroupBuilder
from oncemq.broker.requests.request import Request
from oncemq.broker.requests.waiting import WaitingRequests
from oncemq.broker.round import Round
from oncemq.broker.security import authorizer
from oncemq.broker.security.authorizer import Authorizer
from oncemq.broker.security.caller import Caller
from oncemq.broker.security.security import Authorization, Security
from oncemq.engine import events
from oncemq.engine.apply import messages
from oncemq.engine.decide import lists, owners
from oncemq.engine.decide.decision import Decision
from oncemq.engine.snapshot import capture
from oncemq.engine.state.owners import STAGE, Owners
from oncemq.engine.state.state import State
from oncemq.net.stream.listener import StreamListener
from oncemq.protocol import commands
from oncemq.protocol.commands import As
from oncemq.protocol.replies import Refusal
from tests.simulation.bugs.registry import Patch, bug

# Owners.


@bug("nobody becomes the owner of a session")
def session_has_no_owner() -> Sequence[Patch]:
    kept = {kind: keys_of for kind, keys_of in owners._KEYS.items() if kind is not events.SessionStarted}
    return [(owners, "_KEYS", kept)]


@bug("owners are not journaled: they are lost in a restart")
def owners_are_not_recorded() -> Sequence[Patch]:
    real: Any = GroupBuilder.add

    def add(self: GroupBuilder, event: events.Event, need_bytes: int) -> None:
        if not isinstance(event, events.Owned):
            real(self, event, need_bytes)

    return [(GroupBuilder, "add", add)]


@bug("a snapshot has no owners")
def owners_are_missing_in_snapshots() -> Sequence[Patch]:
    real: Any = capture.Capture._iterate
    return [(capture.Capture, "_iterate", lambda self, *parts: real(self, *parts[:-1], []))]


@bug("the owner of a deleted subscription is remembered: the next one of this name belongs to him")
def owner_outlives_the_subscription() -> Sequence[Patch]:
    real: Any = Owners.forget

    def forget(self: Owners, kind: str, of: str, name: str) -> None:
        if kind != commands.SUBSCRIPTION:
            real(self, kind, of, name)

    return [(Owners, "forget", forget)]


@bug("what was deleted still counts for its owner's quota")
def owned_things_are_counted_for_ever() -> Sequence[Patch]:
    real: Any = Owners.forget

    def forget(self: Owners, kind: str, of: str, name: str) -> None:
        counts = self._counts.copy()
        real(self, kind, of, name)
        self._counts = counts

    return [(Owners, "forget", forget)]


@bug("the owners of all stages are forgotten when one stage is deleted")
def owner_is_forgotten_too_early() -> Sequence[Patch]:
    real: Any = messages._remove_stages

    def remove(state: State, names: Sequence[str]) -> Any:
        for name in state.stages:
            state.owners.forget(STAGE, "", name)
        return real(state, names)

    return [(messages, "_remove_stages", remove)]


@bug("a subscription can be used by everybody who may consume its topic")
def subscription_owner_is_not_checked() -> Sequence[Patch]:
    return [_unchecked(commands.SUBSCRIPTION)]


@bug("a stage can be used by everybody")
def stage_owner_is_not_checked() -> Sequence[Patch]:
    return [_unchecked(STAGE)]


@bug("a writer can be used by everybody")
def writer_owner_is_not_checked() -> Sequence[Patch]:
    return [_unchecked(commands.WRITER)]


def _unchecked(unchecked: str) -> Patch:
    real: Any = Authorizer._own

    def own(self: Authorizer, caller: Caller, kind: str, of: str, name: str) -> Refusal | None:
        refusal: Refusal | None = None if kind == unchecked else real(self, caller, kind, of, name)
        return refusal

    return Authorizer, "_own", own


@bug("a number in the session of somebody else is accepted")
def session_owner_is_not_checked() -> Sequence[Patch]:
    return [(Authorizer, "refuse_number", lambda _self, _sender, _command: None)]


@bug("a key of another principal is accepted")
def principal_is_not_checked() -> Sequence[Patch]:
    return [(Authorizer, "_principal", lambda _self, _caller, _verb, _principal: None)]


# Rights.


@bug("the parts of a transaction are not checked")
def transaction_is_not_authorized() -> Sequence[Patch]:
    return [(authorizer, "NEEDS", {**NEEDS, commands.Transact: ()})]


@bug("everybody may act for others, not only gateways")
def everybody_is_a_gateway() -> Sequence[Patch]:
    real: Any = Security.authorize

    def authorize(self: Security, connection: str, behalf: As | None, command: Any, now_ms: int) -> Authorization:
        if behalf is not None:
            connection = behalf.caller
        found: Authorization = real(self, connection, None, command, now_ms)
        return found

    return [(Security, "authorize", authorize)]


@bug("what is not allowed does not use up its number: the client waits for ever")
def forbidden_number_stays_open() -> Sequence[Patch]:
    real: Any = Security.authorize

    def authorize(self: Security, *request: Any) -> Authorization:
        caller, refusal, _ = real(self, *request)
        return caller, refusal, False

    return [(Security, "authorize", authorize)]


@bug("rights are remembered when they have changed")
def rights_outlive_a_reload() -> Sequence[Patch]:
    real: Any = Security._use

    def use(self: Security, users: Any) -> None:
        remembered = dict(self._callers)
        real(self, users)
        self._callers.update(remembered)

    return [(Security, "_use", use)]


@bug("a request that waits is answered without a look at the rights")
def waiting_request_is_not_authorized() -> Sequence[Patch]:
    real: Any = Round._decide_again

    def decide_again(self: Round, request: Request) -> Decision | None:
        security, self._security = self._security, None
        decision: Decision | None = real(self, request)
        self._security = security
        return decision

    return [(Round, "_decide_again", decide_again)]


@bug("a request that waits keeps waiting when its right is taken away")
def waiting_request_outlives_a_reload() -> Sequence[Patch]:
    return [(WaitingRequests, "try_all", lambda _self: None)]


@bug("the connection of a user who was removed stays open")
def connection_outlives_its_user() -> Sequence[Patch]:
    return [(StreamListener, "drop_invalid", lambda _self: None)]


# What others may know.


@bug("lists show what the user may not see")
def lists_show_everything() -> Sequence[Patch]:
    return [(lists, "LISTS", {})]


@bug("a page ends with a name that the user may not see")
def page_ends_with_a_hidden_name() -> Sequence[Patch]:
    real: Any = lists._page
    return [
        (lists, "_page", lambda names, limit, info_of, size_of, *rest: real(names, limit, info_of, size_of, *rest[:1]))
    ]


@bug("a refusal tells that a topic exists which the user may not see")
def refusal_shows_a_hidden_topic() -> Sequence[Patch]:
    return [(authorizer, "_TOPIC_GONE", Refusal("FORBIDDEN", "it belongs to another user"))]
