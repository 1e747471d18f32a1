"""The parts of every command: help that ends with examples and exit codes, and the lazy group at the root.

It knows nothing about brokers and settings.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

#: Every exit code of the command line. The code of each error is in protocol/errors/.
EXIT_CODES = {
    0: "success",
    1: "unexpected error, declined confirmation, or a failure that is described above",
    2: "invalid command or setting",
    3: "no new messages",
    4: "the broker refused the command",
    5: "no such topic or subscription",
    6: "the broker does not answer",
    7: "another client took over",
    8: "not possible now: try again later",
    9: "the journal or the local state can't be used",
    10: "the credentials are not valid, or the user does not have the right",
    130: "interrupted (Ctrl-C)",
    141: "the reader of the output exited",
    143: "ended by SIGTERM or SIGHUP",
}
#: Exit codes of every command that talks to a broker.
BROKER_EXITS = (0, 2, 4, 6, 8)
#: Key of the running command's advice in the click context.
ADVICE = "oncemq.advice"
#: For commands that only read: nothing can have been changed.
READ_ONLY_ADVICE = {"BROKER_AWAY": "Start the broker (`oncemq serve`), or check the address (`--url`)."}


class Documented(click.Command):
    """A command whose help ends with examples and exit codes.

    `advice` maps error codes to what to do about them, where this command knows better than the error itself. An empty
    text means no advice.
    """

    def __init__(
        self,
        *args: Any,
        examples: str = "",
        exits: Sequence[int] = (0, 2),
        advice: Mapping[str, str] | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(*args, **rest)
        self.advice = advice or {}
        self.examples = [line.strip() for line in examples.strip().splitlines()]
        self.exits = sorted({*exits, 130})

    def invoke(self, ctx: click.Context) -> Any:
        ctx.meta[ADVICE] = self.advice
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), EXIT_CODES[code]) for code in self.exits])


class DocumentedGroup(Documented, click.Group):
    """A group of commands about one kind of thing. Without a subcommand it runs `ls`, if it has one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        is_alone = not args or (args[0].startswith("-") and not set(args) & set(ctx.help_option_names))
        return super().parse_args(ctx, ["ls", *args] if is_alone and "ls" in self.commands else args)


class Lazy(NamedTuple):
    """A command that is imported when it runs."""

    #: "module:name"
    target: str
    section: str
    #: The same as the command's own short help; a test compares them.
    short_help: str


class LazyGroup(click.Group):
    """Knows the name and the short help of its commands, and imports only the one that runs."""

    def __init__(self, *args: Any, lazy: dict[str, Lazy], **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self.lazy:
            return None
        module, _, name = self.lazy[cmd_name].target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for section in dict.fromkeys(entry.section for entry in self.lazy.values()):
            rows = [(name, entry.short_help) for name, entry in self.lazy.items() if entry.section == section]
            with formatter.section(section):
                formatter.write_dl(rows, col_spacing=4)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self.lazy if name.startswith(incomplete)]
        if names and not incomplete.startswith("-"):
            return [CompletionItem(name, help=self.lazy[name].short_help) for name in names]
        return click.Command.shell_complete(self, ctx, incomplete)
