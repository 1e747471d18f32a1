"""`oncemq`: the list of commands, and how errors are reported."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from oncemq import terminal
from oncemq.cli.support.command import ADVICE, Lazy, LazyGroup
from oncemq.protocol.errors import OnceMQError
from oncemq.protocol.version import __version__

INTERRUPTED = 130
READER_GONE = 141

_MESSAGES, _ADMIN, _BROKER = "Messages", "Administration", "Broker and tools"

COMMANDS = {
    "put": Lazy("oncemq.cli.messages.put:put", _MESSAGES, "Store a message, or each line of standard input."),
    "get": Lazy("oncemq.cli.messages.get:get", _MESSAGES, "Print a subscriber's next messages, and ack them."),
    "listen": Lazy(
        "oncemq.cli.messages.listen:listen", _MESSAGES, "Print a subscriber's messages as they arrive, and ack them."
    ),
    "work": Lazy("oncemq.cli.messages.work:work", _MESSAGES, "Run a command for each message, and ack it on success."),
    "sub": Lazy(
        "oncemq.cli.messages.sub:sub", _MESSAGES, "Subscribe to a topic, or to all topics that match a pattern."
    ),
    "unsub": Lazy("oncemq.cli.messages.sub:unsub", _MESSAGES, "Delete a subscription."),
    "seek": Lazy("oncemq.cli.messages.seek:seek", _MESSAGES, "Move a subscription forward or back."),
    "tail": Lazy(
        "oncemq.cli.messages.tail:tail", _MESSAGES, "Print a topic's messages as they arrive, without acking."
    ),
    "shell": Lazy("oncemq.cli.messages.shell:shell", _MESSAGES, "Put and receive messages interactively."),
    "topics": Lazy("oncemq.cli.admin.topics:topics", _ADMIN, "List, create and delete topics."),
    "schema": Lazy("oncemq.cli.admin.schema:schema", _ADMIN, "Give topics a schema, and show and check it."),
    "subs": Lazy("oncemq.cli.admin.subs:subs", _ADMIN, "List subscriptions and their lag."),
    "dead": Lazy("oncemq.cli.admin.dead:dead", _ADMIN, "List, retry and delete dead letters."),
    "sessions": Lazy("oncemq.cli.admin.sessions:sessions", _ADMIN, "List and delete sessions."),
    "keys": Lazy("oncemq.cli.admin.keys:keys", _ADMIN, "List and free idempotency keys."),
    "registry": Lazy("oncemq.cli.admin.registry:registry", _ADMIN, "List and delete entries of the registry."),
    "auth": Lazy("oncemq.cli.auth.group:auth", _ADMIN, "Manage users, tokens, rules and keys of a broker."),
    "journal": Lazy(
        "oncemq.cli.admin.journal:journal", _ADMIN, "Check, export, cut and copy the journal of a stopped broker."
    ),
    "pipeline": Lazy("oncemq.cli.pipeline.group:pipeline", _ADMIN, "Declare data pipelines on Spark, and run them."),
    "context": Lazy(
        "oncemq.cli.admin.context:context", _ADMIN, "Manage contexts: named brokers, with your credentials."
    ),
    "serve": Lazy("oncemq.cli.server.serve:serve", _BROKER, "Run a broker."),
    "gateway": Lazy(
        "oncemq.cli.server.gateway:gateway",
        _BROKER,
        "Serve HTTP, text, push or datagrams for a broker.",
    ),
    "health": Lazy("oncemq.cli.admin.health:health", _BROKER, "Show the state of a broker."),
    "bench": Lazy("oncemq.cli.tools.bench:bench", _BROKER, "Measure a broker next to its upper bounds."),
    "chaos": Lazy("oncemq.cli.tools.chaos:chaos", _BROKER, "Test the guarantees with real crashes."),
    "completion": Lazy("oncemq.cli.tools.completion:completion", _BROKER, "Print the completion script of a shell."),
}


class Root(LazyGroup):
    """Reports every error as a sentence and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OnceMQError as error:
            report(error, as_json=ctx.meta.get("oncemq.json", False), advice=ctx.meta.get(ADVICE, {}))
            ctx.exit(error.exit_code)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            _discard_output()
            ctx.exit(READER_GONE)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except Exception as error:
            _report_unexpected(ctx, error)


def report(error: OnceMQError, as_json: bool, advice: Mapping[str, str]) -> None:
    """Print an error. `advice`, by error code, replaces the advice of the error itself."""
    what_to_do = advice.get(error.code, error.advice)
    if as_json:
        import json

        line = {"code": error.code, "text": error.text, "advice": what_to_do}
        click.echo(terminal.printable_json(json.dumps(line, ensure_ascii=False)), err=True)
        return
    terminal.error(error.text, "" if what_to_do in error.text else what_to_do)


def _report_unexpected(ctx: click.Context, error: Exception) -> NoReturn:
    import logging
    import traceback

    if os.environ.get("ONCEMQ_TRACEBACK") or logging.getLogger("oncemq").isEnabledFor(logging.DEBUG):
        click.echo(terminal.printable("".join(traceback.format_exception(error))), nl=False, err=True)
    what = f"{type(error).__name__}: {error}".strip(": ").encode("ascii", "backslashreplace").decode()
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        text = f"this is a bug: {' '.join(what.split())} (ONCEMQ_TRACEBACK=1 shows where)"
    terminal.error(text)
    ctx.exit(1)


def _discard_output() -> None:
    """Redirect standard output to nowhere after its reader has exited: Python would report an error at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.close(devnull)


@click.group(
    cls=Root,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "--version", prog_name="oncemq")
def cli() -> None:
    """A message broker with durable topics and exactly-once delivery, also across crashes.

    Start a broker with `oncemq serve`, then use `oncemq sub`, `put` and `get`. Every command has a --help text.
    """


def main() -> None:
    try:
        cli(prog_name="oncemq")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
