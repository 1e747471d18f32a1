"""Errors of topics that have a schema."""

from __future__ import annotations

from oncemq.protocol.errors.base import Refused


class SchemaInvalid(Refused):
    """The definition of a schema is not valid, or contains something that a schema cannot express."""

    code = "SCHEMA_INVALID"
    exit_code = 2
    http_status = 422
    advice = (
        "Correct the definition at the place that the message names (docs/howto/schemas.md lists what is accepted)."
    )


class SchemaRequired(Refused):
    """The topic has a schema, and the messages were not checked against it."""

    code = "SCHEMA_REQUIRED"
    http_status = 422
    advice = "Put with a client that checks values: this one did not look up the schema of the topic. Upgrade it."


class SchemaMismatch(Refused):
    """A value does not match the schema of its topic."""

    code = "SCHEMA_MISMATCH"
    http_status = 422
    advice = "Correct the value, or add a version of the schema that allows it (`oncemq schema put`)."
    http_advice = "Correct the value, or add a version of the schema that allows it (PUT /v1/topics/{topic}/schemas)."


class SchemaIncompatible(Refused):
    """The new schema breaks the compatibility rule of the topic. It was not stored."""

    code = "SCHEMA_INCOMPATIBLE"
    http_status = 409
    advice = "Change the schema, or the rule: `oncemq schema check` lists what would break."
    http_advice = "Change the schema, or the rule: POST /v1/topics/{topic}/schemas/check lists what would break."


class SchemaUnknown(Refused):
    """The topic has no schema, or not this version of it."""

    code = "SCHEMA_UNKNOWN"
    exit_code = 5
    http_status = 404
    advice = "`oncemq schema ls` lists the versions; `oncemq schema put` adds one."
    http_advice = "GET /v1/topics/{topic}/schemas lists the versions; PUT adds one."
