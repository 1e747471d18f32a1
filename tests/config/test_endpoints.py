"""Which address and which credentials a client uses."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from oncemq.config import endpoints
from oncemq.config.endpoints import Endpoint
from oncemq.protocol.errors import SettingInvalid

PROD, OTHER, DEFAULT = "oncemq://prod:1", "oncemq://other:2", "oncemq://127.0.0.1:5554"
KEY = "k" * 40


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """An environment with two contexts, of which none is current."""
    path = tmp_path / "contexts.toml"
    path.write_text(
        f'[context.prod]\nurl = "{PROD}"\ntoken = "of-prod"\ntls = "/prod-ca.pem"\ntls_server_name = "prod"\n'
        f'[context.test]\nurl = "oncemq://test:3"\ntoken_file = "/test.token"\n'
    )
    path.chmod(0o600)
    return {"ONCEMQ_CONTEXTS": str(path)}


def make_current(variables: dict[str, str], name: str = "prod") -> None:
    path = Path(variables["ONCEMQ_CONTEXTS"])
    path.write_text(f'current = "{name}"\n{path.read_text()}')


def choose(variables: dict[str, str], file: dict[str, Any] | None = None, **arguments: Any) -> Endpoint:
    sources = [endpoints.arguments(arguments), endpoints.environment(variables), endpoints.file("f: ", file or {})]
    return endpoints.choose(sources, variables).endpoint


def test_without_anything_it_is_the_default_address_without_credentials(variables: dict[str, str]) -> None:
    assert choose(variables) == choose({"ONCEMQ_CONTEXTS": "/none"}) == Endpoint(url=DEFAULT)


def test_an_argument_beats_the_environment_which_beats_the_file(variables: dict[str, str]) -> None:
    file = {"url": "oncemq://file:1", "tls": True}
    assert choose(variables, file).url == "oncemq://file:1"
    variables["ONCEMQ_URL"] = "oncemq://variable:1"
    assert choose(variables, file).url == "oncemq://variable:1"
    assert choose(variables, file, url=OTHER).url == OTHER


def test_a_context_has_an_address_and_credentials(variables: dict[str, str]) -> None:
    expected = Endpoint(url=PROD, token="of-prod", tls="/prod-ca.pem", tls_server_name="prod", context="prod")
    assert choose(variables, context="prod") == expected
    assert choose(variables | {"ONCEMQ_CONTEXT": "prod"}) == expected
    assert choose(variables, {"context": "prod"}) == expected


def test_the_stronger_source_decides_between_an_address_and_a_context(variables: dict[str, str]) -> None:
    assert choose(variables | {"ONCEMQ_URL": OTHER}, context="prod").url == PROD
    assert choose(variables | {"ONCEMQ_CONTEXT": "prod"}, url=OTHER) == Endpoint(url=OTHER)
    assert choose(variables | {"ONCEMQ_CONTEXT": "prod"}, {"url": OTHER}).url == PROD
    assert choose(variables | {"ONCEMQ_URL": OTHER}, {"context": "prod"}) == Endpoint(url=OTHER)


def test_the_current_context_is_used_only_if_nothing_else_has_an_address(variables: dict[str, str]) -> None:
    make_current(variables)
    assert choose(variables).context == "prod"
    assert choose(variables, url=OTHER) == Endpoint(url=OTHER)
    assert choose(variables | {"ONCEMQ_URL": OTHER}) == Endpoint(url=OTHER)
    assert choose(variables, {"url": OTHER}) == Endpoint(url=OTHER)
    assert choose(variables, context="test").context == "test"
    assert choose(variables | {"ONCEMQ_CONTEXT": "test"}).token_file == "/test.token"


def test_a_current_context_that_does_not_exist_is_an_error(variables: dict[str, str]) -> None:
    make_current(variables, "gone")
    with pytest.raises(SettingInvalid, match="no context 'gone'"):
        choose(variables)
    assert choose(variables, url=OTHER).url == OTHER


def test_a_token_of_a_context_or_file_is_used_for_its_own_address_only(variables: dict[str, str]) -> None:
    make_current(variables)
    file = {"url": "oncemq://file:1", "token": "of-file", "tls": "/file-ca.pem"}
    assert choose(variables, file).token == "of-file"
    for found in (choose(variables, file, url=OTHER), choose(variables | {"ONCEMQ_URL": OTHER}, file)):
        assert found == Endpoint(url=OTHER)
    assert choose(variables, file, context="prod").token == "of-prod"
    assert choose(variables, {"token": "of-file"}).token == "of-prod"


def test_credentials_of_a_file_without_an_address_are_for_the_default_address(variables: dict[str, str]) -> None:
    file = {"token": "of-file"}
    assert choose(variables, file) == Endpoint(url=DEFAULT, token="of-file")
    assert choose(variables, file, url=OTHER) == Endpoint(url=OTHER)


def test_credentials_of_arguments_and_environment_are_used_for_any_address(variables: dict[str, str]) -> None:
    assert choose(variables, url=OTHER, token="given").token == "given"
    assert choose(variables, context="prod", token="given").token == "given"
    in_environment = variables | {"ONCEMQ_TOKEN": "of-environment"}
    assert choose(in_environment, url=OTHER).token == "of-environment"
    assert choose(in_environment, context="prod").token == "of-environment"
    assert choose(in_environment, url=OTHER, token="given").token == "given"


def test_an_address_with_a_token_needs_no_contexts_file(variables: dict[str, str]) -> None:
    Path(variables["ONCEMQ_CONTEXTS"]).write_text("not TOML")
    assert choose(variables, url=OTHER, token="given") == Endpoint(url=OTHER, token="given")
    with pytest.raises(SettingInvalid, match="not valid TOML"):
        choose(variables, token="given")


def test_a_token_replaces_the_token_file_of_a_weaker_source(variables: dict[str, str]) -> None:
    in_environment = variables | {"ONCEMQ_TOKEN": "of-environment"}
    found = choose(in_environment, context="test")
    assert (found.token, found.token_file) == ("of-environment", "")
    found = choose(in_environment, url=OTHER, token_file="/x")
    assert (found.token, found.token_file) == ("", "/x")


def test_the_other_credentials_are_combined(variables: dict[str, str]) -> None:
    found = choose(variables | {"ONCEMQ_TLS_SERVER_NAME": "alias"}, context="prod", tls="/own-ca.pem")
    assert (found.tls, found.tls_server_name, found.token) == ("/own-ca.pem", "alias", "of-prod")


def test_a_certificate_and_its_key_come_from_one_source(variables: dict[str, str]) -> None:
    in_environment = variables | {"ONCEMQ_TLS_CERTIFICATE": "/v.pem", "ONCEMQ_TLS_KEY": "/v-key.pem"}
    found = choose(in_environment, url=OTHER, tls_certificate="/a.pem")
    assert (found.tls_certificate, found.tls_key) == ("/a.pem", "")


def test_an_empty_argument_means_none_and_an_empty_variable_is_not_set(variables: dict[str, str]) -> None:
    in_environment = variables | {"ONCEMQ_TOKEN": "of-environment", "ONCEMQ_TLS": "true"}
    found = choose(in_environment, url=OTHER, token="", tls=False)
    assert (found.token, found.tls) == ("", False)
    empty = variables | {"ONCEMQ_TOKEN": "", "ONCEMQ_URL": "", "ONCEMQ_CONTEXT": ""}
    assert choose(empty) == Endpoint(url=DEFAULT)
    assert choose(empty, context="prod").token == "of-prod"


@pytest.mark.parametrize(
    ("text", "expected"), [("true", True), ("True", True), ("false", False), ("ca.pem", "ca.pem"), ("", None)]
)
def test_tls_is_a_switch_or_a_file(text: str, expected: bool | str | None) -> None:
    assert choose({"ONCEMQ_TLS": text, "ONCEMQ_CONTEXTS": "/none"}).tls == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"url": OTHER, "context": "prod"}, "url and context are both given"),
        ({"token": "sss", "token_file": "/x"}, "token and token_file are both given"),
        ({"context": ""}, "context is empty"),
        ({"tls_key": "/x"}, "tls_key is given without tls_certificate"),
        ({"curve_secret": "sss"}, "curve_secret is not a CURVE key"),
    ],
)
def test_what_excludes_each_other_is_refused_without_showing_it(
    variables: dict[str, str], arguments: dict[str, Any], expected: str
) -> None:
    with pytest.raises(SettingInvalid, match=expected) as caught:
        choose(variables, **arguments)
    assert "sss" not in caught.value.text


def test_errors_name_the_variable_or_the_file(variables: dict[str, str]) -> None:
    with pytest.raises(SettingInvalid, match="ONCEMQ_URL and ONCEMQ_CONTEXT are both given"):
        choose(variables | {"ONCEMQ_URL": OTHER, "ONCEMQ_CONTEXT": "prod"})
    with pytest.raises(SettingInvalid, match="f: token and f: token_file"):
        choose(variables, {"token": "a", "token_file": "b"})


def test_the_sources_of_credentials_are_known(variables: dict[str, str]) -> None:
    file = endpoints.file("f: ", {"url": PROD, "token": "of-file"})
    found = endpoints.choose([endpoints.arguments({"tls": True}), file], variables)
    assert {name: source.prefix for name, source in found.sources.items()} == {"token": "f: ", "tls": ""}


def test_an_endpoint_is_described_without_secrets_and_never_pickled() -> None:
    endpoint = Endpoint(url=PROD, token="sss", curve_secret=KEY)
    assert repr(endpoint) == f"Endpoint('{PROD}', token, curve_secret)"
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(endpoint)
