"""Decides operations on the schemas of topics, and whether messages may be put to a topic with a schema."""

from __future__ import annotations

from oncemq.engine import events
from oncemq.engine.decide.decision_context import DecisionContext, Outcome, limit_reached, refuse_unknown_topic
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Topic
from oncemq.engine.state.topic_schema import TopicSchema
from oncemq.protocol import commands, errors, replies
from oncemq.protocol.limits import (
    LIST_PAGE_BYTES_MAX,
    LIST_PAGE_MAX,
    SCHEMA_BYTES_MAX,
    SCHEMA_VERSIONS_MAX,
    SCHEMAS_BYTES_MAX,
)
from oncemq.protocol.replies import Refusal
from oncemq.protocol.schema import RULES, Rule, Schema, encode_schema, fingerprint, incompatibilities, validate_schema

#: Problems that a refusal names. `oncemq schema check` shows all of them.
_PROBLEMS_SHOWN_MAX = 5


def decide_put_schema(context: DecisionContext, operation: commands.PutSchema) -> Outcome:
    topic = context.state.topics.get(operation.topic)
    if topic is None:
        return refuse_unknown_topic(operation.topic)
    known = topic.schema or TopicSchema(())
    refusal = _refuse_settings(operation, known)
    if refusal is not None:
        return refusal
    rule: Rule = operation.rule or known.rule  # type: ignore[assignment]
    check = operation.check or known.check
    if operation.schema is None:
        return events.SchemaChanged(context.claim, topic.id, len(known.versions), None, rule, check)
    same = _find_same(known, operation.schema)
    if same:
        return events.SchemaChanged(context.claim, topic.id, same, None, rule, check)
    refusal = _refuse_schema(operation.schema, known, rule)
    if refusal is not None:
        return refusal
    version = len(known.versions) + 1
    return events.SchemaChanged(context.claim, topic.id, version, operation.schema, rule, check)


def _refuse_settings(operation: commands.PutSchema, known: TopicSchema) -> Refusal | None:
    if operation.rule and operation.rule not in RULES:
        return Refusal("MALFORMED", f"'{operation.rule}' is not a compatibility rule: use {', '.join(RULES)}")
    if operation.check and operation.check not in commands.CHECKS:
        return Refusal("MALFORMED", f"'{operation.check}' is not a check: use {', '.join(commands.CHECKS)}")
    if operation.schema is None and not known.versions:
        return Refusal("SCHEMA_UNKNOWN", f"topic '{operation.topic}' has no schema")
    return None


def _find_same(known: TopicSchema, schema: Schema) -> int:
    """Return the newest version with an equal schema; 0 = there is none."""
    wanted = fingerprint(schema)
    return next((each.version for each in reversed(known.versions) if fingerprint(each.schema) == wanted), 0)


def _refuse_schema(schema: Schema, known: TopicSchema, rule: Rule) -> Refusal | None:
    try:
        validate_schema(schema)
        size = len(encode_schema(schema))
    except errors.SchemaInvalid as error:
        return Refusal(error.code, error.text)
    if size > SCHEMA_BYTES_MAX:
        return Refusal("TOO_LARGE", f"the schema has {size} bytes; the limit is {SCHEMA_BYTES_MAX}")
    if len(known.versions) >= SCHEMA_VERSIONS_MAX:
        return limit_reached(SCHEMA_VERSIONS_MAX, "versions of a schema")
    if size + sum(len(encode_schema(each.schema)) for each in known.versions) > SCHEMAS_BYTES_MAX:
        return limit_reached(SCHEMAS_BYTES_MAX, "bytes of all versions of a schema")
    problems = incompatibilities(known.versions, schema, rule)
    if not problems:
        return None
    more = f"; and {len(problems) - _PROBLEMS_SHOWN_MAX} more" if len(problems) > _PROBLEMS_SHOWN_MAX else ""
    shown = "; ".join(problems[:_PROBLEMS_SHOWN_MAX])
    return Refusal("SCHEMA_INCOMPATIBLE", f"under the rule '{rule}': {shown}{more}")


def refuse_unchecked(topic: Topic | None, name: str, envelope: commands.Envelope) -> Refusal | None:
    """Refuse messages that were not checked against a version of the topic's schema. `topic` is None for a new one."""
    version = envelope.schema_version
    schema = topic.schema if topic is not None else None
    if not version:
        if schema is not None and schema.is_required:
            text = f"topic '{name}' has a schema, and the messages were not checked against it"
            return Refusal("SCHEMA_REQUIRED", text)
        return None
    if topic is None or schema is None or schema.find(version) is None:
        return Refusal("SCHEMA_UNKNOWN", f"the schema of topic '{name}' has no version {version}")
    if envelope.schema_topic_id and envelope.schema_topic_id != topic.id:
        text = f"the messages were checked against the schema of a deleted topic of the name '{name}'"
        return Refusal("SCHEMA_UNKNOWN", text)
    return None


def list_schemas(state: State, command: commands.Schemas) -> replies.Reply:
    topic = state.topics.get(command.topic)
    if topic is None:
        return refuse_unknown_topic(command.topic)
    known = topic.schema
    if known is None:
        return replies.SchemasReply(topic.id, 0, "", "")
    newest = len(known.versions)
    first = command.version or newest
    if not 1 <= first <= newest:
        return Refusal("SCHEMA_UNKNOWN", f"the schema of topic '{command.topic}' has no version {first}")
    page = []
    left_bytes = LIST_PAGE_BYTES_MAX
    for each in known.versions[first - 1 : first - 1 + max(1, min(command.limit, LIST_PAGE_MAX))]:
        page.append(each)
        left_bytes -= len(encode_schema(each.schema))
        if left_bytes <= 0:
            break
    return replies.SchemasReply(topic.id, newest, known.rule, known.check, tuple(page))
