"""Rules: what a user may do. `VERB PATTERN` grants a verb on the topics that the pattern matches, `role NAME` all rules
of a role."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from oncemq.protocol.errors import SettingInvalid
from oncemq.protocol.limits import NAME_BYTES_MAX
from oncemq.protocol.patterns import covers, is_pattern, matches, refuse_pattern

DESCRIBE = "describe"
READ = "read"
CONSUME = "consume"
WRITE = "write"
CREATE = "create"
CONFIGURE = "configure"
DELETE = "delete"
ALL = "all"

#: Verb → what it allows on a topic.
VERBS = {
    DESCRIBE: "See the topic in lists, with its settings, subscriptions and schemas. Every other verb includes this.",
    READ: "Read stored messages without a subscription.",
    CONSUME: "Create, use, move and delete own subscriptions. Includes `read`.",
    WRITE: "Put and stage messages.",
    CREATE: "Create the topic.",
    CONFIGURE: "Change settings and schemas of the topic. Retention and quotas delete messages.",
    DELETE: "Delete the topic with all its messages and subscriptions.",
    ALL: "All of these verbs.",
}

ADMIN = "admin"
VIEWER = "viewer"
GATEWAY = "gateway"
#: Built-in role → what it allows.
ROLES = {
    ADMIN: "Everything, also what belongs to other users. Reads auth.toml again.",
    VIEWER: "See all topics, subscriptions, sessions and metrics. Reads no messages.",
    GATEWAY: "Log callers in and send commands in their name. For gateways that run on their own.",
}

#: Verb → the verbs of rules that grant it.
_GRANTED_BY = {
    DESCRIBE: frozenset(VERBS),
    READ: frozenset((READ, CONSUME, ALL)),
    **{verb: frozenset((verb, ALL)) for verb in (CONSUME, WRITE, CREATE, CONFIGURE, DELETE, ALL)},
}

#: Decisions that a user's rights remember. When there are more, all are forgotten.
_REMEMBERED_MAX = 10_000
_ROLE_DEPTH_MAX = 8


class Rule(msgspec.Struct, frozen=True, gc=False):
    verb: str
    #: A topic, or a pattern of topics.
    pattern: str
    #: The role that it is part of; "" = it is the user's own.
    role: str = ""

    def __str__(self) -> str:
        """
        >>> str(Rule("write", "meals", "cook"))
        'write meals (role cook)'
        """
        return f"{self.verb} {self.pattern}" + (f" (role {self.role})" if self.role else "")

    @property
    def levels(self) -> list[str]:
        return self.pattern.split(".")

    def grants(self, verb: str, topic: str) -> bool:
        """Return whether it grants a verb on a topic, or on all topics that a pattern matches."""
        if self.verb not in _GRANTED_BY[verb]:
            return False
        if is_pattern(topic):
            return covers(self.levels, topic)
        return self.pattern == topic or matches(self.levels, topic)


def parse_rule(text: str) -> Rule:
    """Parse `VERB PATTERN` or `role NAME`. A role is a rule with the verb `role`. Raises SettingInvalid.

    >>> parse_rule("consume orders.*")
    Rule(verb='consume', pattern='orders.*', role='')
    """
    verb, _, pattern = text.strip().partition(" ")
    pattern = pattern.strip()
    if verb == "role" and pattern:
        return Rule("role", pattern)
    if verb not in VERBS:
        raise SettingInvalid(f"'{text}' is not a rule: use `VERB TOPIC` or `role NAME`; verbs are {', '.join(VERBS)}")
    if not pattern:
        raise SettingInvalid(f"rule '{text}' names no topic; `{verb} #` is for all topics")
    refusal = refuse_pattern(pattern)
    if refusal is not None:
        raise SettingInvalid(f"rule '{text}': {refusal.text}")
    return Rule(verb, pattern)


class Rights:
    """What one user may do."""

    def __init__(self, rules: Sequence[Rule], roles: Iterable[str] = ()) -> None:
        self.rules = tuple(rules)
        self.roles = frozenset(roles)
        self.is_admin = ADMIN in self.roles
        #: Sees what belongs to others.
        self.is_viewer = self.is_admin or VIEWER in self.roles
        self.is_gateway = GATEWAY in self.roles
        self._remembered: dict[tuple[str, str], bool] = {}

    def allows(self, verb: str, topic: str) -> bool:
        """Return whether a verb is granted on a topic, or on all topics that a pattern matches."""
        known = self._remembered.get((verb, topic))
        if known is not None:
            return known
        if len(topic) > NAME_BYTES_MAX:
            # It can't be a topic, and is neither compared nor remembered.
            return False
        if len(self._remembered) >= _REMEMBERED_MAX:
            self._remembered.clear()
        found = self._remembered[verb, topic] = bool(self.deciding_rule(verb, topic))
        return found

    def allows_somewhere(self, verb: str) -> bool:
        """Return whether a verb is granted on some topic."""
        return self.is_admin or any(rule.verb in _GRANTED_BY[verb] for rule in self.rules)

    def deciding_rule(self, verb: str, topic: str) -> str:
        """Return the rule or role that grants a verb on a topic; empty if none does."""
        if self.is_admin:
            return f"role {ADMIN}"
        for rule in self.rules:
            if rule.grants(verb, topic):
                return str(rule)
        return f"role {VIEWER}" if self.is_viewer and verb == DESCRIBE else ""


def resolve(texts: Iterable[str], roles: Mapping[str, Sequence[str]]) -> Rights:
    """Return the rights that rules grant, with the rules of their roles. Raises SettingInvalid."""
    rules: list[Rule] = []
    named: dict[str, None] = {}
    _add(texts, roles, "", rules, named, 0)
    return Rights(rules, named)


def _add(
    texts: Iterable[str],
    roles: Mapping[str, Sequence[str]],
    role: str,
    rules: list[Rule],
    named: dict[str, None],
    depth: int,
) -> None:
    for text in texts:
        rule = parse_rule(text)
        if rule.verb != "role":
            rules.append(Rule(rule.verb, rule.pattern, role))
            continue
        name = rule.pattern
        if name not in ROLES and name not in roles:
            known = ", ".join((*ROLES, *roles))
            raise SettingInvalid(f"there is no role '{name}'; there are {known}")
        if depth >= _ROLE_DEPTH_MAX:
            raise SettingInvalid(f"role '{name}' includes too many other roles, or itself")
        named[name] = None
        if name not in ROLES:
            _add(roles[name], roles, name, rules, named, depth + 1)
