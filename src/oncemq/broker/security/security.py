"""The security of one broker: its users, who is connected, and what they may do.

Without users (there is no auth.toml), everybody may do everything. A new auth.toml takes effect with `reload`; if it is
not valid, the former one stays in force.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from oncemq.auth.tokens import StoredToken
from oncemq.auth.users import Users, user_of
from oncemq.broker.security import audit
from oncemq.broker.security.audit import AuditLog
from oncemq.broker.security.authorizer import Authorizer
from oncemq.broker.security.caller import Caller
from oncemq.broker.security.logins import FailedLogins
from oncemq.broker.security.quotas import refuse_over_quota
from oncemq.broker.security.usage import Usage
from oncemq.engine.events import Declined, Event
from oncemq.engine.state.owners import TOPIC
from oncemq.engine.state.state import State
from oncemq.protocol import commands, errors
from oncemq.protocol.commands import CURVE, MAC, NO_CREDENTIAL, TOKEN, As, Command, Keyed, Login, Numbered
from oncemq.protocol.replies import LoginReply, NotNow, Refusal

log = logging.getLogger("oncemq.security")

#: (for whom it is decided, why it is refused, whether the refusal uses up the number of the command)
Authorization = tuple[Caller | None, Refusal | NotNow | None, bool]

OPEN: Authorization = (None, None, False)
_NO_LONGER = Refusal("UNAUTHENTICATED", "the credentials are not valid any more")
_NOT_LOGGED_IN = Refusal("UNAUTHENTICATED", "the broker has users, and this connection has no credentials")
_TOO_MANY_FAILURES = "there were too many failed logins from this address; try again later"
#: Kinds of credentials that somebody may guess. The others were proven in the handshake, or tell nothing.
_GUESSED = (TOKEN, CURVE)
#: Usages of users that are remembered.
_USAGES_MAX = 10_000
#: Operations that the audit log has, with the fields that say what they were about.
_AUDITED: dict[type, tuple[str, ...]] = {
    commands.CreateTopic: ("name",),
    commands.DeleteTopic: ("name",),
    commands.PutSchema: ("topic",),
    commands.Subscribe: ("topic", "subscriber"),
    commands.Unsubscribe: ("topic", "subscriber"),
    commands.Seek: ("topic", "subscriber"),
    commands.RemoveSession: ("session",),
    commands.RemoveKeys: ("principal",),
    commands.Assign: ("kind", "of", "name", "owner"),
}


class Security:
    """Implements `net.gate.Gate`."""

    def __init__(
        self,
        load: Callable[[], Users | None],
        now_ms: Callable[[], int],
        *,
        audit_log: AuditLog | None = None,
        own_gateway: StoredToken | None = None,
    ) -> None:
        """`load` reads auth.toml; None = there is none. Raises what it raises (SettingInvalid). `own_gateway` is the
        token of the gateway process of this broker."""
        self._load = load
        self._now_ms = now_ms
        self._own_gateway = own_gateway
        self.audit = audit_log or AuditLog(None)
        self.counters: Counter[str] = Counter()
        self._failed = FailedLogins()
        self._callers: dict[str, Caller | None] = {}
        self._usages: dict[str, Usage] = {}
        self._state: State | None = None
        self._authorizer: Authorizer | None = None
        self._changed: Callable[[], None] = lambda: None
        #: Called after new users took effect.
        self.on_reload: list[Callable[[], None]] = []
        #: Called after auth.toml was read again, with the reason if it was refused.
        self.on_read: list[Callable[[str], None]] = []
        #: Some user has a quota of bytes in flight, or of bytes stored.
        self.limits_in_flight = self._limits_storage = False
        self.users: Users | None = None
        self._use(load())

    def attach(self, state: State, counters: Counter[str], changed: Callable[[], None] = lambda: None) -> None:
        """Use the state of a broker's engine, and its counters. `changed` is called after new users took effect, for
        the connections and waiting requests of this broker."""
        self._changed = changed
        self._state = state
        self._authorizer = Authorizer(state)
        counters.update(self.counters)
        self.counters = counters

    def _use(self, users: Users | None) -> None:
        if users is not None and self._own_gateway is not None:
            users = users.with_own_gateway(self._own_gateway)
        self.users = users
        self._callers.clear()
        for usage in self._usages.values():
            # What waits was counted by other quotas.
            usage.in_flight_bytes = 0
        found = list(users.by_name.values()) if users is not None else []
        self.limits_in_flight = any(user.quotas.in_flight_bytes for user in found)
        self._limits_storage = any(user.quotas.stored_bytes for user in found)

    def reload(self, caller: str = "") -> Refusal | None:
        """Read auth.toml again. Return why it is not valid; then nothing has changed."""
        refusal = self._reload(caller)
        for call in self.on_read:
            call(refusal.text if refusal is not None else "")
        return refusal

    def _reload(self, caller: str) -> Refusal | None:
        self.audit.reopen()
        try:
            users = self._load()
            if users is None and self.users is not None:
                raise errors.SettingInvalid("auth.toml does not exist any more; the users stay as they were")
        except errors.SettingInvalid as error:
            log.error("auth.toml was not reloaded: %s", error.text)
            self.audit.add(self._now_ms(), audit.NOT_RELOADED, by=user_of(caller), text=error.text)
            return Refusal(error.code, error.text)
        self._use(users)
        if users is not None:
            log.info("auth.toml was reloaded: %d users", len(users.by_name))
            self.audit.add(self._now_ms(), audit.RELOADED, by=user_of(caller), users=len(users.by_name))
        for call in (self._changed, *self.on_reload):
            call()
        return None

    # Authentication.

    def admit(self, kind: str, credential: str, address: str) -> str:
        caller = self._login(kind, credential, address, "native")
        found = self._caller(caller) if caller else None
        if found is not None:
            limit = found.quotas.connections
            if limit and found.usage.connections >= limit:
                text = f"user '{found.user}' has reached its quota of {limit} connections"
                self._note_refusal(caller, "QUOTA_REACHED", text)
                raise errors.QuotaReached(text)
            found.usage.connections += 1
        return caller

    def left(self, caller: str) -> None:
        usage = self._usages.get(user_of(caller))
        if usage is not None:
            usage.connections -= 1

    def is_valid(self, caller: str) -> bool:
        return not caller if self.users is None else self._caller(caller) is not None

    def login(self, command: Login) -> LoginReply | Refusal | NotNow:
        """Answer a gateway that asks whose credential this is."""
        try:
            caller = self._login(command.kind, command.credential, command.address, command.listener)
        except errors.RateLimited as error:
            return NotNow(error.code, error.text)
        except errors.Refused as error:
            return Refusal(error.code, error.text)
        is_mac = command.kind == MAC and caller and self.users is not None
        return LoginReply(caller, self.users.mac_key(caller) if is_mac and self.users is not None else b"")

    def _login(self, kind: str, credential: str, address: str, listener: str) -> str:
        if self.users is None:
            return ""
        now_ms = self._now_ms()
        token = self.users.known_token(kind, credential)
        is_guessed = kind in _GUESSED and not self.users.knows_key(kind, credential)
        if is_guessed and self._failed.is_limited(address, token, now_ms):
            self.counters["logins_limited"] += 1
            raise errors.RateLimited(_TOO_MANY_FAILURES)
        where = {"kind": kind, "address": address, "listener": listener}
        try:
            if kind == NO_CREDENTIAL:
                raise errors.Unauthenticated(_NOT_LOGGED_IN.text)
            caller = self.users.login(kind, credential)
        except errors.Unauthenticated:
            self.counters["logins_failed"] += 1
            if kind != NO_CREDENTIAL:
                self._failed.note(address, token, now_ms)
                self.audit.add(now_ms, audit.LOGIN_FAILED, **where)
            raise
        self.counters["logins"] += 1
        user, _, used = caller.partition("/")
        event = audit.KEY_GIVEN if kind == MAC else audit.LOGIN
        self.audit.add(now_ms, event, user=user, credential=used, **where)
        return caller

    def _caller(self, name: str) -> Caller | None:
        """Return a caller; None if its user or credential does not exist."""
        try:
            return self._callers[name]
        except KeyError:
            pass
        user = self.users.find(name) if self.users is not None else None
        if user is None:
            # Not remembered: names are made up by the sender.
            return None
        found = self._callers[name] = Caller(name, user, self._usage(user.name))
        return found

    def _usage(self, user: str) -> Usage:
        usage = self._usages.get(user)
        if usage is None:
            if len(self._usages) >= _USAGES_MAX:
                self._usages = {name: kept for name, kept in self._usages.items() if not kept.is_idle}
                self._callers.clear()
            usage = self._usages[user] = Usage()
        return usage

    # Authorisation.

    def authorize(self, connection: str, behalf: As | None, command: Command, now_ms: int) -> Authorization:
        """Decide whether a connection may send a command. `behalf` says for whom a gateway sends it."""
        if self.users is None:
            return OPEN
        sender = self._caller(connection)
        if sender is None:
            return None, _NO_LONGER if connection else _NOT_LOGGED_IN, False
        if behalf is None and not sender.is_limited and not self._limits_storage:
            # The path of most commands.
            assert self._authorizer is not None
            if self._authorizer.allows_put(sender, command):
                return sender.allowed
        caller: Caller | None = sender
        if behalf is not None:
            if not sender.is_gateway:
                text = f"user '{sender.user}' is not a gateway and may not act for others"
                return sender, self._refused(sender, Refusal("FORBIDDEN", text)), False
            caller = self._caller(behalf.caller)
        assert self._authorizer is not None
        assert self._state is not None
        # Whose session the number of the command is in.
        numbering = sender if behalf is None or behalf.in_own_session else caller
        if type(command) is Numbered and numbering is not None:
            refusal: Refusal | NotNow | None = self._authorizer.refuse_number(numbering, command)
            if refusal is not None:
                return caller, self._refused(numbering, refusal), False
        uses_number = type(command) is Numbered and numbering is not None
        if caller is None:
            return None, _NO_LONGER, uses_number
        refusal = self._authorizer.refuse(sender, caller, command)
        if refusal is None and (caller.is_limited or self._limits_storage):
            refusal = refuse_over_quota(self._state, caller, command, now_ms, self._owner_of)
        if refusal is None:
            refusal = self._refuse_unknown_owner(command)
        if refusal is None:
            return caller.allowed
        return caller, self._refused(caller, refusal), uses_number and isinstance(refusal, Refusal)

    def _refuse_unknown_owner(self, command: Command) -> Refusal | None:
        """Refuse to give something to a user that does not exist: nobody could use it."""
        operation = command.operation if isinstance(command, Numbered | Keyed) else None
        if not isinstance(operation, commands.Assign) or not operation.owner:
            return None
        is_known = self.users is not None and operation.owner in self.users.by_name
        return None if is_known else Refusal("MALFORMED", f"there is no user '{operation.owner}'")

    def _owner_of(self, topic: str) -> Caller | None:
        """Return the user whose quota the bytes of a topic count for."""
        assert self._state is not None
        owner = self._state.owners.get(TOPIC, "", topic)
        user = self.users.by_name.get(owner) if self.users is not None and owner else None
        return Caller(owner, user, self._usage(owner)) if user is not None and user.quotas.stored_bytes else None

    def _refused(self, caller: Caller, refusal: Refusal | NotNow) -> Refusal | NotNow:
        self._note_refusal(caller.name, refusal.code, refusal.text)
        return refusal

    def _note_refusal(self, caller: str, code: str, text: str) -> None:
        self.counters[f"refused_{code.lower()}"] += 1
        self.audit.add_refusal(self._now_ms(), caller, code, text)

    def note_change(self, caller: Caller | None, command: Command, event: Event, now_ms: int) -> None:
        """Record a change in the audit log, if it is one of those that are recorded there."""
        operation: Any = command.operation if isinstance(command, Numbered | Keyed) else command
        fields = _AUDITED.get(type(operation))
        if fields is None or caller is None or isinstance(event, Declined):
            return
        what: dict[str, Any] = {field: getattr(operation, field) for field in fields}
        user, _, credential = caller.name.partition("/")
        tag = operation.__struct_config__.tag
        self.audit.add(now_ms, audit.CHANGED, user=user, credential=credential, operation=tag, **what)

    # Bytes in flight.

    def refuse_in_flight(self, caller: str, frames: Sequence[Any]) -> NotNow | None:
        """Count a request that has arrived. Refuse it if its user has too many bytes in flight."""
        found = self._caller(caller) if caller else None
        if found is None or not found.quotas.in_flight_bytes:
            return None
        size = sum(map(len, frames))
        usage, limit = found.usage, found.quotas.in_flight_bytes
        if usage.in_flight_bytes and usage.in_flight_bytes + size > limit:
            text = f"user '{found.user}' has reached its quota of {limit} bytes in flight"
            self._note_refusal(caller, "RATE_LIMITED", text)
            return NotNow("RATE_LIMITED", text)
        usage.in_flight_bytes += size
        return None

    def note_decided(self, caller: str, frames: Sequence[Any]) -> None:
        """A request that was counted is decided."""
        usage = self._usages.get(user_of(caller))
        if usage is not None:
            usage.in_flight_bytes = max(0, usage.in_flight_bytes - sum(map(len, frames)))
