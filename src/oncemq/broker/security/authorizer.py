"""Decides whether a caller may do what a command says, by the table in auth/operations.py.

Topics that a caller may not see are treated like topics that do not exist, as far as they are not named by the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncemq.auth import operations
from oncemq.auth.operations import NEEDS, Need
from oncemq.auth.rules import CONSUME, WRITE
from oncemq.broker.security.caller import Caller
from oncemq.engine.event_bytes import refusal_text
from oncemq.engine.state.owners import STAGE
from oncemq.engine.state.state import State
from oncemq.protocol import commands
from oncemq.protocol.commands import BY_PATTERN, Command, Keyed, Numbered, Put
from oncemq.protocol.replies import Refusal

#: As the engine answers for the id of a topic that does not exist.
_TOPIC_GONE = Refusal("TOPIC_GONE", "the topic was deleted")


class Authorizer:
    """Reads the engine's state, and changes nothing."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._checks: dict[str, Callable[[Caller, str, Any], Refusal | None]] = {
            operations.TOPIC: self._topic,
            operations.NEW_TOPIC: self._new_topic,
            operations.OLD_TOPIC: self._old_topic,
            operations.PASSING_TOPIC: self._passing_topic,
            operations.ANY_TOPIC: self._any_topic,
            operations.OWNED_SESSION: self._owned_session,
            operations.SUBSCRIPTION: self._subscription,
            operations.SUBSCRIPTION_ID: self._subscription_id,
            operations.SESSION: self._session,
            operations.PRINCIPAL: self._principal,
            operations.STAGE: self._stage,
            operations.WRITER: self._writer,
            operations.ENTRY: self._entry,
            operations.BROKER: self._role,
        }

    def refuse(self, connection: Caller, caller: Caller, command: Command) -> Refusal | None:
        """Refuse what a caller may not do. `connection` is whose connection it is: another one if a gateway acts for
        the caller. The session of a number is checked by `refuse_number`."""
        kind = type(command)
        if kind is Numbered:
            return self._refuse(connection, caller, command.operation)  # type: ignore[union-attr]
        if kind is Keyed:
            refusal = self._refuse(connection, caller, command)
            return refusal or self._refuse(connection, caller, command.operation)  # type: ignore[union-attr]
        return self._refuse(connection, caller, command)

    def allows_put(self, caller: Caller, command: Command) -> bool:
        """Return whether this is a put under a number of the caller's own session that the caller may do. If not, the
        table decides."""
        if type(command) is not Numbered or type(command.operation) is not Put:
            return False
        put = command.operation
        owners = self._state.owners
        key = (command.session, put.topic, owners.changes)
        if key == caller.last_put and not put.create:
            return True
        if put.create or not caller.rights.allows(WRITE, put.topic):
            return False
        is_own = owners.get(commands.SESSION, "", command.session) == caller.user
        if is_own:
            caller.last_put = key
        return is_own

    def refuse_number(self, sender: Caller, command: Numbered) -> Refusal | None:
        """Refuse a number in the session of somebody else, which does not exist for the sender."""
        owner = self._state.owners.get(commands.SESSION, "", command.session)
        if owner in ("", sender.user) or sender.is_admin:
            return None
        return _session_unknown(command.session)

    def _refuse(self, connection: Caller, caller: Caller, command: Any) -> Refusal | None:
        needs = NEEDS.get(type(command))
        if needs is None:
            return Refusal("FORBIDDEN", f"nobody may do this: {type(command).__name__} has no entry in the table")
        for need in needs:
            refusal = self._check(connection, caller, need, command)
            if refusal is not None:
                return refusal
        return None

    def _check(self, connection: Caller, caller: Caller, need: Need, command: Any) -> Refusal | None:
        if need.verb == operations.GATEWAY:
            # What a gateway needs for its work, it needs itself.
            is_allowed = (
                connection.is_gateway
                or connection.is_admin
                or (connection.is_viewer and isinstance(command, commands.RegistryList))
            )
            return None if is_allowed else _forbidden(caller, "act as a gateway")
        check = self._checks[need.kind]
        for resource in need.of(command):
            refusal = check(caller, need.verb, resource)
            if refusal is not None:
                return refusal
        return None

    # Kinds of resources.

    def _role(self, caller: Caller, verb: str, _: str) -> Refusal | None:
        if verb == operations.ADMIN and not caller.is_admin:
            return _forbidden(caller, "do this without the role admin")
        return None

    def _topic(self, caller: Caller, verb: str, name: str) -> Refusal | None:
        return None if caller.rights.allows(verb, name) else _forbidden(caller, f"{verb} '{name}'")

    def _new_topic(self, caller: Caller, verb: str, name: str) -> Refusal | None:
        return None if name in self._state.topics else self._topic(caller, verb, name)

    def _old_topic(self, caller: Caller, verb: str, name: str) -> Refusal | None:
        return self._topic(caller, verb, name) if name in self._state.topics else None

    def _passing_topic(self, caller: Caller, verb: str, name: str) -> Refusal | None:
        topic = self._state.topics.get(name)
        return self._topic(caller, verb, name) if topic is not None and not topic.stays else None

    def _any_topic(self, caller: Caller, verb: str, _: str) -> Refusal | None:
        return None if caller.rights.allows_somewhere(verb) else _forbidden(caller, f"{verb} anything")

    def _subscription(self, caller: Caller, verb: str, resource: tuple[str, str]) -> Refusal | None:
        topic, subscriber = resource
        if verb == operations.OWN:
            # The owner may end a subscription to a topic that it may not consume any more.
            if self._state.owners.get(commands.SUBSCRIPTION, topic, subscriber) == caller.user:
                return None
            verb = CONSUME
        return self._topic(caller, verb, topic) or self._own(caller, commands.SUBSCRIPTION, topic, subscriber)

    def _subscription_id(self, caller: Caller, verb: str, resource: tuple[int, str]) -> Refusal | None:
        topic_id, key = resource
        topic = self._state.topics_by_id.get(topic_id)
        if topic is None:
            # The engine says so.
            return None
        subscriber, by_pattern, pattern = key.partition(BY_PATTERN)
        of = pattern if by_pattern else topic.name
        is_own = self._state.owners.get(commands.SUBSCRIPTION, of, subscriber) == caller.user
        if is_own and key in topic.subscriptions:
            return None if verb == operations.OWN else self._topic(caller, verb, topic.name)
        if not caller.sees(topic.name):
            return _TOPIC_GONE
        refusal = None if verb == operations.OWN else self._topic(caller, verb, topic.name)
        return refusal or self._own(caller, commands.SUBSCRIPTION, of, subscriber)

    def _session(self, caller: Caller, _: str, name: str) -> Refusal | None:
        return self._own(caller, commands.SESSION, "", name)

    def _owned_session(self, caller: Caller, _: str, name: str) -> Refusal | None:
        if caller.is_admin or self._state.owners.get(commands.SESSION, "", name) == caller.user:
            return None
        return _session_unknown(name)

    def _principal(self, caller: Caller, _: str, principal: str) -> Refusal | None:
        if caller.is_admin or principal == caller.user or principal.startswith(f"{caller.user}/"):
            return None
        return _forbidden(caller, f"use the principal '{principal}'; its own is '{caller.user}'")

    def _stage(self, caller: Caller, _: str, name: str) -> Refusal | None:
        return self._own(caller, STAGE, "", name)

    def _writer(self, caller: Caller, _: str, name: str) -> Refusal | None:
        return self._own(caller, commands.WRITER, "", name)

    def _entry(self, caller: Caller, _: str, resource: tuple[str, str]) -> Refusal | None:
        return self._own(caller, commands.ENTRY, *resource)

    def _own(self, caller: Caller, kind: str, of: str, name: str) -> Refusal | None:
        owner = self._state.owners.get(kind, of, name)
        if owner in ("", caller.user) or caller.is_admin:
            return None
        where = f" of '{of}'" if of else ""
        return _forbidden(caller, f"use the {kind} '{name}'{where}, which belongs to another user")


def _session_unknown(name: str) -> Refusal:
    return Refusal("SESSION_UNKNOWN", refusal_text(f"there is no session '{name}'"))


def _forbidden(caller: Caller, what: str) -> Refusal:
    return Refusal("FORBIDDEN", refusal_text(f"user '{caller.user}' may not {what}"))
