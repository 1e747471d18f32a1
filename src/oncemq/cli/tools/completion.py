"""`oncemq completion`: scripts with which a shell completes commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from oncemq.cli.support.command import Documented


@click.command(
    cls=Documented,
    examples="""
        eval "$(oncemq completion bash)"
        oncemq completion zsh > ~/.zfunc/_oncemq
        oncemq completion fish > ~/.config/fish/completions/oncemq.fish
    """,
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    It also completes the names of topics, subscribers and sessions, if the broker answers quickly.
    """
    from oncemq.cli.main import cli

    script = get_completion_class(shell)
    assert script is not None, "click knows these three"
    click.echo(script(cli, {}, "oncemq", "_ONCEMQ_COMPLETE").source())
