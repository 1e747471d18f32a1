"""Finds the subscription of a command, and checks that the caller's epoch is the current one."""

from __future__ import annotations

from oncemq.engine.decide.decision_context import refuse_unknown_topic
from oncemq.engine.state.pattern_subscription import PatternSubscription
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Subscription, Topic
from oncemq.protocol import commands
from oncemq.protocol.replies import Refusal


def find_exclusive(state: State, topic_id: int, subscriber: str, epoch: int) -> tuple[Topic, Subscription] | Refusal:
    """Return an exclusive subscription if the caller owns it."""
    found = _find(state, topic_id, subscriber, epoch)
    if not isinstance(found, Refusal) and found[1].shared is not None:
        return Refusal("KIND_MISMATCH", f"'{subscriber}' on '{found[0].name}' is shared: use take and settle")
    return found


def find_shared(state: State, topic_id: int, subscriber: str, epoch: int) -> tuple[Topic, Subscription] | Refusal:
    """Return a shared subscription if it is the one that the caller has opened."""
    found = _find(state, topic_id, subscriber, epoch)
    if not isinstance(found, Refusal) and found[1].shared is None:
        return Refusal("KIND_MISMATCH", f"'{subscriber}' on '{found[0].name}' is not shared: use get and ack")
    return found


def _find(state: State, topic_id: int, subscriber: str, epoch: int) -> tuple[Topic, Subscription] | Refusal:
    topic = state.topics_by_id.get(topic_id)
    if topic is None:
        return Refusal("TOPIC_GONE", "the topic was deleted")
    subscription = topic.subscriptions.get(subscriber)
    if subscription is None:
        return _not_subscribed(topic, subscriber)
    owner = subscription.pattern or subscription
    refusal = refuse_epoch(owner, epoch, f"'{owner.subscriber}' on '{topic.name}'")
    return refusal or (topic, subscription)


def find_owned_pattern(state: State, pattern: str, subscriber: str, epoch: int) -> PatternSubscription | Refusal:
    found = find_pattern(state, pattern, subscriber)
    if isinstance(found, Refusal):
        return found
    return refuse_epoch(found, epoch, f"'{subscriber}' on '{pattern}'") or found


def find_owner(
    state: State, command: commands.Get | commands.Ack | commands.GetAny
) -> Subscription | PatternSubscription:
    """Return what the sender of a command that was not refused owns."""
    if isinstance(command, commands.GetAny):
        return state.patterns[(command.pattern, command.subscriber)]
    subscription = state.topics_by_id[command.topic_id].subscriptions[command.subscriber]
    return subscription.pattern or subscription


def note_heard(owner: Subscription | PatternSubscription, now_ms: int) -> None:
    """The owner has opened the subscription, got or acked: its idle time starts again. This is not recorded."""
    owner.heard_ms = now_ms


def find_pattern(state: State, pattern: str, subscriber: str) -> PatternSubscription | Refusal:
    found = state.patterns.get((pattern, subscriber))
    return found or Refusal("NOT_SUBSCRIBED", f"'{subscriber}' is not subscribed to '{pattern}'")


def find_by_name(topic: Topic, subscriber: str) -> Subscription | None:
    """Return a subscription to this topic alone. Operations on a pattern subscription name its pattern."""
    found = topic.subscriptions.get(subscriber)
    return found if found is not None and found.pattern is None else None


def find_named(state: State, topic_name: str, subscriber: str) -> tuple[Topic, Subscription] | Refusal:
    """Return a subscription to one topic, by name. A pattern subscription on the topic is not found."""
    topic = state.topics.get(topic_name)
    if topic is None:
        return refuse_unknown_topic(topic_name)
    subscription = find_by_name(topic, subscriber)
    return (topic, subscription) if subscription is not None else _not_subscribed(topic, subscriber)


def _not_subscribed(topic: Topic, subscriber: str) -> Refusal:
    subscriber = subscriber.partition(commands.BY_PATTERN)[0]
    if subscriber in topic.expired_names:
        text = f"'{subscriber}' was the slowest subscription when '{topic.name}' reached its quota, and was deleted"
        return Refusal("SUBSCRIPTION_EXPIRED", text)
    return Refusal("NOT_SUBSCRIBED", f"'{subscriber}' is not subscribed to '{topic.name}'")


def refuse_epoch(owner: Subscription | PatternSubscription, epoch: int, what: str) -> Refusal | None:
    if owner.epoch == epoch:
        return None
    if owner.sought_epoch and owner.sought_epoch <= epoch < owner.epoch:
        return Refusal("SOUGHT", f"a seek moved {what}")
    return Refusal("FENCED", f"another client took over {what}")
