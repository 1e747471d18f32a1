"""`oncemq context`: named addresses of brokers with credentials, in a file of the user (config/contexts.py)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from oncemq.cli.support.command import Documented, DocumentedGroup
from oncemq.cli.support.options import CONTEXT, NO_TOKEN_VALUE, json_option, print_list
from oncemq.config import contexts, endpoints
from oncemq.config.contexts import Contexts
from oncemq.protocol.errors import SettingInvalid
from oncemq.terminal import is_terminal, json_line, note, table

_HIDDEN = "(hidden)"
#: The option --token without a value.
_PROMPT = "?"


@click.group(
    cls=DocumentedGroup,
    examples="""
        oncemq context
        oncemq context add prod --url oncemq://broker.example:5554 --tls ca.pem --token
        oncemq context use prod
        oncemq topics --context prod
    """,
)
def context() -> None:
    """Manage contexts: named brokers, with your credentials.

    A context has the address of a broker, and what you show to it: a token, how the connection is encrypted, keys.
    Commands use the context that --context or ONCEMQ_CONTEXT names. Without an address (--url, ONCEMQ_URL, or
    client.url in oncemq.toml), they use the current context. `oncemq.connect` and Spark do the same.

    The credentials of a context are used for its own address only. Contexts are stored in
    ~/.config/oncemq/contexts.toml, or in the file that ONCEMQ_CONTEXTS names, which only you can read.
    """


@context.command(
    cls=Documented,
    examples="""
        oncemq context add local --url oncemq://127.0.0.1:5554
        oncemq context add prod --url oncemq://broker.example:5554 --tls ca.pem --token
        oncemq context add prod --url oncemq://broker.example:5554 --tls true --token-file prod.token --use
        vault read -field=token secret/oncemq | oncemq context add prod --url oncemq://broker --tls true --token-stdin
    """,
)
@click.argument("name")
@click.option("--url", metavar="URL[,URL...]", required=True, help="Address of the broker, or of it and its standbys.")
@click.option(
    "--token",
    "token",
    metavar="",
    is_flag=False,
    flag_value=_PROMPT,
    help="Ask for the token, without showing what is typed, and store it. It takes no value: a token in an argument "
    "would be visible to other users (`ps`).",
)
@click.option("--token-stdin", is_flag=True, help="Read the token from standard input, and store it.")
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="File with the token. Its name is stored, and it is read for each connection.",
)
@click.option(
    "--tls",
    metavar="true|FILE",
    help="Encrypt the connection. FILE: the certificate of the broker's authority, if the system does not know it.",
)
@click.option(
    "--tls-certificate",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Your certificate, if you have one.",
)
@click.option(
    "--tls-key", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="The key of that certificate."
)
@click.option(
    "--tls-server-name", metavar="NAME", help="Name in the broker's certificate. [default: the host of the address]"
)
@click.option("--curve-server", metavar="KEY", help="ZeroMQ: the public key of the broker.")
@click.option(
    "--curve-secret-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="ZeroMQ: file with your secret key (`oncemq auth keys --client`). The key is stored, with your public key.",
)
@click.option("--use", "is_used", is_flag=True, help="Make it the current context.")
@click.option("--replace", is_flag=True, help="Replace a context of this name.")
@json_option
def add(
    name: str,
    url: str,
    token: str | None,
    token_stdin: bool,
    curve_secret_file: str | None,
    is_used: bool,
    replace: bool,
    as_json: bool,
    **given: str | None,
) -> None:
    """Add a context.

    The token itself is never an argument, because other users of the machine see the arguments of commands, and the
    shell saves them in its history. With --token the command asks for it, --token-stdin reads it from a pipe, and
    --token-file stores the name of a file, in which the token can be replaced at any time.
    """
    contexts.check_name(name)
    if token not in (None, _PROMPT):
        raise click.UsageError(
            f"--token takes no value: {NO_TOKEN_VALUE}. Without a value it asks for the token; a script uses "
            "--token-stdin or --token-file. Replace this token if others may have seen it."
        )
    if sum((token is not None, token_stdin, given["token_file"] is not None)) > 1:
        raise click.UsageError("Give one of --token, --token-stdin and --token-file.")
    if (given["curve_server"] is None) != (curve_secret_file is None):
        raise click.UsageError("--curve-server and --curve-secret-file belong together.")
    settings: dict[str, Any] = {"url": url, **_absolute(given)}
    if token is not None or token_stdin:
        settings["token"] = _read_token(is_asked=token is not None)
    if curve_secret_file is not None:
        settings |= _read_keys(curve_secret_file)
    _check(settings)
    path = contexts.path_of()
    _check_new(contexts.load(path), name, path, is_replaced=replace)

    def insert(found: Contexts) -> Contexts:
        _check_new(found, name, path, is_replaced=replace)
        return Contexts(name if is_used else found.current, {**found.entries, name: settings})

    changed = contexts.change(path, insert)
    if as_json:
        click.echo(json_line(_shown(name, changed)))
        return
    is_current = changed.current == name
    click.echo(f"Added {name} to {path}." + (" It is the current context." if is_current else ""))
    if not is_current:
        note(f"`oncemq context use {name}` makes it the current one.")


def _absolute(given: Mapping[str, str | None]) -> dict[str, Any]:
    """The settings that are given, with absolute paths: later commands run in other folders."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        if value is None:
            continue
        parsed = endpoints.parse_tls(value) if key == "tls" else value
        is_path = isinstance(parsed, str) and key in contexts.PATHS
        if is_path and not os.path.isfile(os.path.expanduser(value)):
            raise click.BadParameter(f"There is no file {value!r}.", param_hint=f"--{key.replace('_', '-')}")
        found[key] = os.path.abspath(os.path.expanduser(value)) if is_path else parsed
    return found


def _check(settings: Mapping[str, Any]) -> None:
    """Raise SettingInvalid for settings that `connect` would refuse."""
    from oncemq.client.credentials import credentials_of
    from oncemq.client.gateway_api import check_urls, split_urls

    urls = split_urls(settings["url"])
    check_urls(urls)
    credentials_of(endpoints.choose([endpoints.arguments(settings)]).endpoint, urls)


def _read_token(*, is_asked: bool) -> str:
    """Ask for a token, or read it from standard input."""
    if is_asked:
        if not is_terminal(sys.stdin):
            raise click.UsageError("--token asks for the token on a terminal; use --token-stdin here.")
        token: str = click.prompt("Token", hide_input=True, err=True)
    else:
        token = sys.stdin.read()
    token = token.strip()
    if not token or len(token.split()) != 1:
        raise SettingInvalid("this is not a token: a token is one word")
    return token


def _read_keys(path: str) -> dict[str, str]:
    """Read a secret key, which the public one follows from."""
    from oncemq.net.curve import public_of

    try:
        secret = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        secret = ""
    public = public_of(secret)
    if public is None:
        raise SettingInvalid(f"{path} contains no key of 40 characters")
    return {"curve_public": public, "curve_secret": secret}


def _check_new(found: Contexts, name: str, path: Path, *, is_replaced: bool) -> None:
    if name in found.entries and not is_replaced:
        raise SettingInvalid(f"there is a context '{name}' in {path}; --replace replaces it")


@context.command(
    cls=Documented,
    examples="""
        oncemq context use prod
        oncemq context use --none
    """,
)
@click.argument("name", type=CONTEXT, required=False)
@click.option("--none", "is_none", is_flag=True, help="Have no current context.")
@json_option
def use(name: str | None, is_none: bool, as_json: bool) -> None:
    """Choose the current context, which is used where no address is given."""
    if is_none == (name is not None):
        raise click.UsageError("Give the name of a context, or --none.")
    path = contexts.path_of()

    def choose(found: Contexts) -> Contexts:
        if name is not None:
            contexts.entry_of(found, name, path)
        return Contexts(name or "", found.entries)

    contexts.change(path, choose)
    if as_json:
        click.echo(json_line({"current": name}))
        return
    click.echo(f"{name} is the current context." if name else "There is no current context.")
    _note_stronger()


def _note_stronger() -> None:
    """Say that the environment decides, and not the current context."""
    for variable in ("ONCEMQ_URL", "ONCEMQ_CONTEXT"):
        if os.environ.get(variable):
            note(f"{variable} is set, so commands use that instead of the current context.")


@context.command(
    cls=Documented,
    examples="""
        oncemq context ls
        oncemq context ls --json | jq -r 'select(.current) | .url'
    """,
)
@json_option
def ls(as_json: bool) -> None:
    """List contexts. The current one has a star. Secrets are not shown."""
    found = contexts.load(contexts.path_of())
    entries = [_shown(name, found) for name in found.entries]
    rows = [
        ("*" if each["current"] else "", each["name"], each["url"], _login_of(each), _encryption_of(each))
        for each in entries
    ]
    heads = ["", "CONTEXT", "URL", "LOGIN", "ENCRYPTION"]
    print_list(entries, as_json, "There are no contexts.", lambda: table(heads, rows))


def _login_of(shown: Mapping[str, Any]) -> str:
    kinds = ("token", "token_file", "curve_public", "tls_certificate")
    words = ("token", "token file", "CURVE key", "certificate")
    return ", ".join(word for kind, word in zip(kinds, words, strict=True) if shown.get(kind)) or "none"


def _encryption_of(shown: Mapping[str, Any]) -> str:
    is_tls = shown.get("tls") or (shown.get("tls") is None and (shown.get("tls_certificate") or _has_name(shown)))
    return "TLS" if is_tls else "CURVE" if shown.get("curve_server") else "none"


def _has_name(shown: Mapping[str, Any]) -> bool:
    return bool(shown.get("tls_server_name"))


def _shown(name: str, found: Contexts) -> dict[str, Any]:
    """A context without its secrets."""
    settings = {key: _HIDDEN if key in endpoints.SECRETS else value for key, value in found.entries[name].items()}
    return {"name": name, "current": found.current == name, **settings}


@context.command(
    cls=Documented,
    examples="""
        oncemq context show prod
        oncemq context show prod --json | jq -r .url
    """,
)
@click.argument("name", type=CONTEXT)
@json_option
def show(name: str, as_json: bool) -> None:
    """Show the settings of a context. Secrets are not shown."""
    path = contexts.path_of()
    found = contexts.load(path)
    contexts.entry_of(found, name, path)
    shown = _shown(name, found)
    if as_json:
        click.echo(json_line(shown))
        return
    for line in table(["SETTING", "VALUE"], [(key, _text(value)) for key, value in shown.items()]):
        click.echo(line)


def _text(value: bool | str) -> str:
    return str(value).lower() if isinstance(value, bool) else value


@context.command(
    cls=Documented,
    examples="""
        oncemq context rm staging
        oncemq context rm staging --json
    """,
)
@click.argument("name", type=CONTEXT)
@json_option
def rm(name: str, as_json: bool) -> None:
    """Delete a context. A file with its token is not deleted, and the token stays valid: `oncemq auth` revokes it."""
    path = contexts.path_of()

    def remove(found: Contexts) -> Contexts:
        contexts.entry_of(found, name, path)
        rest = {each: settings for each, settings in found.entries.items() if each != name}
        return Contexts("" if found.current == name else found.current, rest)

    changed = contexts.change(path, remove)
    if as_json:
        click.echo(json_line({"name": name}))
        return
    click.echo(f"Deleted {name}." + ("" if changed.current else " There is no current context."))
