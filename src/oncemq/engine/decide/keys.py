"""Decides about the table of idempotency keys: whether there is space for a new one, and which ones are freed."""

from __future__ import annotations

from oncemq.engine import events
from oncemq.engine.decide.decision_context import DecisionContext, Outcome
from oncemq.engine.state.key_table import KeyEntry
from oncemq.engine.state.state import State
from oncemq.protocol import commands
from oncemq.protocol.limits import REMOVED_KEYS_MAX, Limits
from oncemq.protocol.replies import NotNow, Refusal


def refuse_new_key(state: State, limits: Limits, now_ms: int, principal: str) -> NotNow | None:
    """Refuse a new key if the principal has used up its share of the table, or if the table is full."""
    keys, own = state.keys, state.keys.of(principal)
    if len(own) >= limits.keys_per_principal_max:
        what = f"principal '{principal}' has reached its limit of {limits.keys_per_principal_max} keys"
        return _keys_full(what, next(iter(own.values())), limits, now_ms)
    if len(keys) >= limits.keys_max:
        return _keys_full(f"the limit of {limits.keys_max} keys is reached", next(iter(keys)), limits, now_ms)
    return None


def _keys_full(what: str, oldest: KeyEntry, limits: Limits, now_ms: int) -> NotNow:
    left_s = max(0, oldest.time_ms + limits.key_ms - now_ms) // 1000
    text = f"{what}; the oldest one expires in {left_s} seconds, and `oncemq keys rm` frees keys before that"
    return NotNow("KEYS_FULL", text)


def decide_remove_keys(context: DecisionContext, operation: commands.RemoveKeys) -> Outcome:
    if len(operation.keys) > REMOVED_KEYS_MAX:
        return Refusal("MALFORMED", f"one command can free at most {REMOVED_KEYS_MAX} keys")
    known = context.state.keys
    # The operation may have a key itself, which stays.
    found = [key for key in dict.fromkeys(operation.keys) if known.get(operation.principal, key) is not None]
    return events.KeysRemoved(context.claim, operation.principal, tuple(found))
