"""`oncemq`: the list of commands, and what becomes of an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from oncemq.cli.support.command import ADVICE, Lazy, LazyGroup
from oncemq.protocol.errors import OnceMQError
from oncemq.protocol.version import __version__

INTERRUPTED = 130
READER_GONE = 141

_MESSAGES, _THINGS, _BROKER = "Messages", "Things", "Broker and tools"

COMMANDS = {
    "put": Lazy("oncemq.cli.messages.put:put", _MESSAGES, "Store a message, or each line of standard input."),
    "get": Lazy("oncemq.cli.messages.get:get", _MESSAGES, "Print a subscriber's next messages, and ack them."),
    "listen": Lazy(
        "oncemq.cli.messages.listen:listen", _MESSAGES, "Print a subscriber's messages as they come, and ack them."
    ),
    "work": Lazy("oncemq.cli.messages.work:work", _MESSAGES, "Run a command for each message, and ack it on success."),
    "sub": Lazy("oncemq.cli.messages.sub:sub", _MESSAGES, "Subscribe to a topic, or to all that match a pattern."),
    "unsub": Lazy("oncemq.cli.messages.sub:unsub", _MESSAGES, "End a subscription."),
    "seek": Lazy("oncemq.cli.messages.seek:seek", _MESSAGES, "Move a subscription forth or back."),
    "tail": Lazy("oncemq.cli.messages.tail:tail", _MESSAGES, "Print a topic's messages as they come, without acking."),
    "shell": Lazy("oncemq.cli.messages.shell:shell", _MESSAGES, "Put and receive messages by hand, at a prompt."),
    "topics": Lazy("oncemq.cli.admin.topics:topics", _THINGS, "List, create and remove topics."),
    "subs": Lazy("oncemq.cli.admin.subs:subs", _THINGS, "List subscriptions and how far behind they are."),
    "dead": Lazy("oncemq.cli.admin.dead:dead", _THINGS, "List, retry and remove dead letters."),
    "sessions": Lazy("oncemq.cli.admin.sessions:sessions", _THINGS, "List and remove sessions."),
    "journal": Lazy(
        "oncemq.cli.admin.journal:journal", _THINGS, "Check, export, cut and copy a stopped broker's journal."
    ),
    "pipeline": Lazy("oncemq.cli.pipeline.group:pipeline", _THINGS, "Declare data pipelines on Spark, and run them."),
    "serve": Lazy("oncemq.cli.server.serve:serve", _BROKER, "Run a broker."),
    "gateway": Lazy(
        "oncemq.cli.server.gateway:gateway",
        _BROKER,
        "Serve another protocol for a broker: HTTP, text, push, datagrams.",
    ),
    "health": Lazy("oncemq.cli.admin.health:health", _BROKER, "Ask a broker how it is."),
    "bench": Lazy("oncemq.cli.tools.bench:bench", _BROKER, "Measure a broker against its limits."),
    "chaos": Lazy("oncemq.cli.tools.chaos:chaos", _BROKER, "Show that nothing is lost, with real crashes."),
    "completion": Lazy("oncemq.cli.tools.completion:completion", _BROKER, "Print a shell's completion script."),
}


class Root(LazyGroup):
    """Turns what goes wrong into a sentence and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OnceMQError as error:
            report(error, as_json=ctx.meta.get("oncemq.json", False), advice=ctx.meta.get(ADVICE, {}))
            ctx.exit(error.exit_code)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            _forget_output()
            ctx.exit(READER_GONE)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except Exception as error:
            _report_unexpected(ctx, error)


def report(error: OnceMQError, as_json: bool, advice: Mapping[str, str]) -> None:
    """`advice`, by code, goes before the error's own."""
    what_to_do = advice.get(error.code, error.advice)
    if as_json:
        import json

        line = {"code": error.code, "text": error.text, "advice": what_to_do}
        click.echo(json.dumps(line, ensure_ascii=False), err=True)
        return
    click.echo(click.style("error: ", fg="red", bold=True) + error.text, err=True)
    if what_to_do and what_to_do not in error.text:
        click.echo(f"       {what_to_do}", err=True)


def _report_unexpected(ctx: click.Context, error: Exception) -> NoReturn:
    import logging
    import traceback

    if os.environ.get("ONCEMQ_TRACEBACK") or logging.getLogger("oncemq").isEnabledFor(logging.DEBUG):
        click.echo("".join(traceback.format_exception(error)), nl=False, err=True)
    what = f"{type(error).__name__}: {error}".strip(": ").encode("ascii", "backslashreplace").decode()
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        text = f"this is a bug: {' '.join(what.split())} (ONCEMQ_TRACEBACK=1 shows where)"
    click.echo(click.style("error: ", fg="red", bold=True) + text, err=True)
    ctx.exit(1)


def _forget_output() -> None:
    """Whoever read our output has gone. Point it nowhere, or Python complains when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


@click.group(
    cls=Root,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "--version", prog_name="oncemq")
def cli() -> None:
    """A message broker: durable topics, exactly once, through every crash.

    Start one with `oncemq serve`, then `oncemq sub`, `put` and `get`. Each command explains itself with --help.
    """


def main() -> None:
    try:
        cli(prog_name="oncemq")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
