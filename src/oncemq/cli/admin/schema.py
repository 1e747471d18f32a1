"""`oncemq schema`: the schemas of topics."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented, DocumentedGroup
from oncemq.cli.support.options import TOPIC, Reach, connected, json_option, print_list, reaches_broker
from oncemq.terminal import json_line, table

if TYPE_CHECKING:
    from oncemq.client.schemas.admin import TopicSchema
    from oncemq.client.sync import Client
    from oncemq.protocol.schema import Schema, SchemaVersion

_KINDS = ["fields", "json-schema", "avro", "protobuf"]
_RULES = ["backward", "forward", "full", "none"]
_FORMS = ["definition", "fields", "json-schema", "avro", "arrow"]
#: What `check` says if something would break.
_BREAKS = 4


@click.group(
    cls=DocumentedGroup,
    exits=(*BROKER_EXITS, 5),
    examples="""
        oncemq schema put orders "id: int64 not null, price: decimal(10,2)" --create
        oncemq schema put orders --file order.avsc --compatibility full --check broker
        oncemq schema check orders --file order-2.avsc
        oncemq schema ls
        oncemq schema get orders --as json-schema
    """,
)
def schema() -> None:
    """Give topics a schema, and show and check it.

    Without a subcommand, it lists the topics that have one, as `oncemq schema ls` does.
    """


def _definition_options(function: Any) -> Any:
    for option in (
        click.option("--message", default="", metavar="NAME", help="The message of a Protobuf definition."),
        click.option(
            "--encoding",
            type=click.Choice(["json", "avro", "protobuf"]),
            help="How values are encoded. [default: as the definition: json for fields and JSON Schema]",
        ),
        click.option("--kind", type=click.Choice(_KINDS), help="The language of the definition. [default: detected]"),
        click.option(
            "--file",
            "file",
            type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
            help="Read the definition from this file; - is standard input.",
        ),
        click.argument("definition", required=False),
        click.argument("topic", type=TOPIC),
    ):
        function = option(function)
    return function


def _schema_of(
    definition: str | None, file: Path | None, kind: str | None, encoding: str | None, message: str
) -> Schema | None:
    """Return the schema of the definition that was given; None: none was."""
    from oncemq.client.schemas.admin import schema_of
    from oncemq.protocol.schema.definitions.parse import SUFFIXES

    if definition is not None and file is not None:
        raise click.UsageError("Give the definition as an argument or with --file, not both.")
    source: str | bytes
    if file is not None:
        source = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        kind = kind or SUFFIXES.get(file.suffix)
    elif definition is not None:
        source = definition
    else:
        return None
    return schema_of(source, cast(Any, kind), cast(Any, encoding), message)


@schema.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 5),
    advice={
        "TOPIC_UNKNOWN": "Create the topic with `--create`, or with `oncemq topics create`.",
        "SCHEMA_INCOMPATIBLE": "Change the definition, or the rule with `--compatibility`.",
    },
    examples="""
        oncemq schema put orders "id: int64 not null, price: decimal(10,2), tags: list<string>" --create
        oncemq schema put orders --file order.json --compatibility full
        oncemq schema put orders --file shop.proto --message Order --check broker
        oncemq schema put orders --check none
    """,
)
@_definition_options
@click.option(
    "--compatibility",
    type=click.Choice(_RULES),
    help="What new versions may change: readers with the new version can read all earlier values (backward), readers "
    "with earlier versions can read new values (forward), both (full), or anything (none). [default: as it is; "
    "backward at first]",
)
@click.option(
    "--check",
    type=click.Choice(["client", "broker", "none"]),
    help="Who checks values: clients and gateways before they put, the broker too, or nobody. [default: as it is; "
    "client at first]",
)
@click.option("--create", is_flag=True, help="Create the topic, as a permanent one, if it does not exist.")
@json_option
@reaches_broker
def put(
    topic: str,
    definition: str | None,
    file: Path | None,
    kind: str | None,
    encoding: str | None,
    message: str,
    compatibility: Any,
    check: Any,
    create: bool,
    as_json: bool,
    reach: Reach,
) -> None:
    """Add a version to the schema of a topic, or change its settings.

    DEFINITION is in the fields form; other languages are read from a file. Without a definition, only the settings
    change. A schema that the topic has already keeps its version.
    """
    found = _schema_of(definition, file, kind, encoding, message)
    if found is None and compatibility is None and check is None:
        raise click.UsageError("Give a definition, --file, --compatibility or --check.")
    with connected(reach) as client:
        if create:
            _create(client, topic)
        before = client.schema(topic)
        version = client.put_schema(topic, found, compatibility=compatibility, check=check)
        after = client.schema(topic)
    assert after is not None
    is_new = before is None or version > before.newest.version
    if as_json:
        click.echo(json_line({"topic": topic, "version": version, "created": is_new, **_settings(after)}))
        return
    what = f"version {version} of {topic}" if is_new else f"{topic} has this schema already, as version {version}"
    if found is None:
        what = f"the schema of {topic} has {version} version{'' if version == 1 else 's'}"
    click.echo(f"{what[0].upper()}{what[1:]}: compatibility {after.compatibility}, checked by {after.check}.")


def _create(client: Client, topic: str) -> None:
    from oncemq.client.internal import internal_api

    if internal_api(client).find_topic(topic) is None:
        client.create_topic(topic)


def _settings(found: TopicSchema) -> dict[str, str]:
    return {"compatibility": found.compatibility, "check": found.check}


@schema.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 5),
    advice=READ_ONLY_ADVICE,
    examples="""
        oncemq schema get orders
        oncemq schema get orders --version 1 --as json-schema
        oncemq schema get orders --json | jq .fields
    """,
)
@click.argument("topic", type=TOPIC)
@click.option("--version", type=click.IntRange(1), help="The version. [default: the newest]")
@click.option(
    "--as",
    "form",
    type=click.Choice(_FORMS),
    default="definition",
    help="The language: as it was given, or converted. [default: definition]",
)
@json_option
@reaches_broker
def get(topic: str, version: int | None, form: str, as_json: bool, reach: Reach) -> None:
    """Print the schema of a topic."""
    found, one = _find(reach, topic, version)
    if as_json:
        click.echo(json_line({**_row(found, one), **_content(one)}))
    else:
        click.echo(_as(one.schema, form).rstrip("\n"))


def _find(reach: Reach, topic: str, version: int | None) -> tuple[TopicSchema, SchemaVersion]:
    from oncemq.protocol.errors import SchemaUnknown

    with connected(reach) as client:
        found = client.schema(topic)
    if found is None:
        raise SchemaUnknown(f"topic '{topic}' has no schema")
    if version is not None and version > found.newest.version:
        raise SchemaUnknown(f"the schema of '{topic}' has no version {version}; the newest is {found.newest.version}")
    return found, found.versions[(version or found.newest.version) - 1]


def _row(found: TopicSchema, one: SchemaVersion) -> dict[str, Any]:
    row = {"topic": found.topic, "version": one.version, "encoding": one.schema.encoding, **_settings(found)}
    return {**row, "time_ms": one.time_ms}


def _content(one: SchemaVersion) -> dict[str, Any]:
    from oncemq.protocol.schema import fields_to_builtins

    schema = one.schema
    content = {"fields": fields_to_builtins(schema.fields), "kind": schema.definition_kind}
    return {**content, "message": schema.message, "definition": schema.definition}


def _as(found: Schema, form: str) -> str:
    import json

    from oncemq.protocol.schema import fields_text
    from oncemq.protocol.schema.definitions.export import to_avro, to_json_schema
    from oncemq.protocol.schema.extras import require

    if form == "definition":
        return found.definition
    if form == "fields":
        return fields_text(found.fields, ",\n")
    if form == "arrow":
        require("pyarrow", "--as arrow")
        from oncemq.protocol.schema.arrow import to_arrow

        return str(to_arrow(found))
    return json.dumps(to_json_schema(found) if form == "json-schema" else to_avro(found), indent=2, ensure_ascii=False)


@schema.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 5),
    advice=READ_ONLY_ADVICE,
    examples="""
        oncemq schema ls
        oncemq schema ls orders
        oncemq schema ls --json | jq -r .topic
    """,
)
@click.argument("topic", type=TOPIC, required=False)
@json_option
@reaches_broker
def ls(topic: str | None, as_json: bool, reach: Reach) -> None:
    """List the topics that have a schema, or the versions of one topic's schema."""
    with connected(reach) as client:
        names = [topic] if topic else [info.name for info in client.topics() if info.schema_version]
        found = [known for name in names if (known := client.schema(name)) is not None]
    versions = [(known, one) for known in found for one in (known.versions if topic else known.versions[-1:])]
    empty = f"{topic} has no schema." if topic else "No topic has a schema."
    print_list([_row(*each) for each in versions], as_json, empty, lambda: _table(versions))


def _table(versions: list[tuple[TopicSchema, SchemaVersion]]) -> list[str]:
    from oncemq.protocol.schema import fields_text

    heads = ["TOPIC", "VERSION", "ENCODING", "COMPATIBILITY", "CHECK", "FIELDS"]
    rows = [
        [
            known.topic,
            one.version,
            one.schema.encoding,
            known.compatibility,
            known.check,
            _shortened(fields_text(one.schema.fields)),
        ]
        for known, one in versions
    ]
    return table(heads, rows)


def _shortened(text: str, characters_max: int = 60) -> str:
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


@schema.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 5),
    examples="""
        oncemq schema check orders --file order-2.json
        oncemq schema check orders "id: int64 not null" --compatibility full
        oncemq schema check orders --values
    """,
)
@_definition_options
@click.option("--compatibility", type=click.Choice(_RULES), help="Another rule than the topic has.")
@click.option("--values", is_flag=True, help="Check the stored messages, against the definition or their versions.")
@json_option
@reaches_broker
def check(
    topic: str,
    definition: str | None,
    file: Path | None,
    kind: str | None,
    encoding: str | None,
    message: str,
    compatibility: Any,
    values: bool,
    as_json: bool,
    reach: Reach,
) -> None:
    """Say what a definition would break, without storing it.

    It ends with exit code 4 if something would break, or if a stored message does not match.
    """
    new = _schema_of(definition, file, kind, encoding, message)
    if new is None and not values:
        raise click.UsageError("Give a definition, --file or --values.")
    with connected(reach) as client:
        problems = client.check_schema(topic, new, compatibility=compatibility) if new is not None else []
        if values:
            problems += list(_mismatches(client, topic, new))
    for problem in problems:
        click.echo(json_line({"problem": problem}) if as_json else problem)
    if problems:
        sys.exit(_BREAKS)
    if not as_json:
        click.echo("Nothing would break." if new is not None else "All stored messages match.")


def _mismatches(client: Client, topic: str, new: Schema | None) -> Any:
    """Yield what is wrong with stored messages: against the new schema, or the versions that they were written with.
    Those that were written before there was a schema are checked against the newest version."""
    from oncemq.protocol.errors import SchemaUnknown
    from oncemq.protocol.schema.values.codec import codec_of

    if new is not None:
        schemas = [new]
    elif (known := client.schema(topic)) is not None:
        schemas = [each.schema for each in known.versions]
    else:
        raise SchemaUnknown(f"topic '{topic}' has no schema")
    codecs = [codec_of(schema) for schema in schemas]
    for message in client.read(topic, "earliest"):
        # Version n is at index n - 1, and the newest one at the end.
        codec = codecs[min(message.schema_version, len(codecs)) - 1]
        problem = codec.problem(message.value)
        if problem is not None:
            yield f"offset {message.offset}: {problem}"
