"""`oncemq completion`: what a shell needs to complete commands, options and names."""

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
    """Print a shell's completion script.

    Names of topics, subscribers and sessions are completed too, if the broker answers quickly.
    """
    from oncemq.cli.main import cli

    script = get_completion_class(shell)
    assert script is not None, "click knows these three"
    click.echo(script(cli, {}, "oncemq", "_ONCEMQ_COMPLETE").source())
