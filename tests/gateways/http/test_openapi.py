"""The OpenAPI document: complete, consistent, and the same as what the gateway does."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from click.testing import CliRunner

from oncemq.cli.main import cli
from oncemq.gateways.http.docs.openapi import TAGS, document
from oncemq.gateways.http.docs.site import endpoints as site_endpoints
from oncemq.gateways.http.endpoints import ENDPOINTS
from oncemq.gateways.http.framework.endpoint import ALWAYS, ANY, JSON, PROBLEM, Answer, Call
from oncemq.gateways.http.settings import GatewaySettings
from oncemq.protocol.version import __version__

Json = dict[str, Any]
DOCUMENT: Json = document(ENDPOINTS)
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
each_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


def test_every_endpoint_is_in_the_document_and_nothing_else() -> None:
    assert sorted(OPERATIONS) == sorted(f"{endpoint.method} {endpoint.path}" for endpoint in ENDPOINTS)


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [operation["operationId"] for operation in OPERATIONS.values()]
    assert sorted(names) == sorted(set(names))


def test_every_tag_is_described() -> None:
    assert {tag["name"] for tag in DOCUMENT["tags"]} <= set(TAGS)


def test_every_reference_leads_somewhere() -> None:
    for reference in _references(DOCUMENT):
        found: Any = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]


@each_operation
def test_every_operation_is_explained(operation: Json) -> None:
    assert operation["summary"]
    assert operation["description"]
    assert [one["name"] for one in operation.get("parameters", ()) if not one.get("description")] == []


@each_operation
def test_every_parameter_of_the_path_is_declared(operation: Json) -> None:
    name = next(name for name, one in OPERATIONS.items() if one is operation)
    declared = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
    assert declared == set(re.findall(r"{(\w+)}", name))


@each_operation
def test_every_body_has_an_example(operation: Json) -> None:
    contents = operation.get("requestBody", {}).get("content", {})
    assert [media for media, content in contents.items() if not content.get("examples") and media != ANY] == []


@each_operation
def test_every_reply_in_json_has_a_schema_and_an_example(operation: Json) -> None:
    for status, response in operation["responses"].items():
        content = response.get("content", {}).get(JSON)
        if content is not None:
            assert content["schema"], status
            assert "example" in content or "examples" in content, status


def test_every_field_of_a_body_is_explained() -> None:
    missing = [
        f"{name}.{field}"
        for name, schema in DOCUMENT["components"]["schemas"].items()
        for field, described in schema.get("properties", {}).items()
        if "description" not in described
    ]
    assert missing == []


@each_operation
def test_the_examples_are_what_the_schemas_allow(operation: Json) -> None:
    for content in _contents(operation):
        examples = [_resolved(one)["value"] for one in content.get("examples", {}).values()]
        examples += [content["example"]] if "example" in content else []
        schema = {**content["schema"], "components": DOCUMENT["components"]}
        for example in examples:
            jsonschema_rs.validate(schema, example)


@each_operation
def test_every_refusal_is_a_problem_with_its_code(operation: Json) -> None:
    for kind in ALWAYS:
        content = operation["responses"][str(kind.http_status)]["content"][PROBLEM]
        value = _resolved(content["examples"][kind.code])["value"]
        assert value["code"] == kind.code
        assert value["status"] == kind.http_status


def test_the_document_says_whose_version_it_is() -> None:
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert DOCUMENT["info"]["version"] == __version__
    assert "Idempotency-Key" in DOCUMENT["info"]["description"]


def test_the_served_document_is_the_same_and_need_not_be_sent_twice() -> None:
    first = _get("/openapi.json", {})
    assert json.loads(first.body) == json.loads(json.dumps(DOCUMENT))
    again = _get("/openapi.json", {b"if-none-match": dict(first.headers)[b"etag"]})
    assert (again.status, again.body) == (304, b"")


def test_the_command_line_prints_it_without_starting_anything() -> None:
    result = CliRunner().invoke(cli, ["gateway", "http", "--openapi"])
    assert result.exit_code == 0
    assert json.loads(result.output) == json.loads(json.dumps(DOCUMENT))


def _get(path: str, headers: dict[bytes, bytes]) -> Answer:
    """Return the application's answer, without a broker."""
    endpoint = next(one for one in site_endpoints(ENDPOINTS) if one.path == path)
    nobody: Any = None
    call: Call[None, None] = Call(nobody, GatewaySettings(brokers=()), None, None, headers, None)

    async def answered() -> Any:
        return await endpoint.handler(call)

    found = asyncio.run(answered())
    assert isinstance(found, Answer)
    return found


def _contents(operation: Json) -> Iterator[Json]:
    for part in (operation.get("requestBody", {}), *operation["responses"].values()):
        yield from part.get("content", {}).values()


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for inner in part.values():
            yield from _references(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _references(inner)


def _resolved(part: Json) -> Json:
    if "$ref" not in part:
        return part
    found: Json = DOCUMENT["components"]["examples"][part["$ref"].rpartition("/")[2]]
    return found
