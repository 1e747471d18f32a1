"""`oncemq pipeline validate`: everything that is wrong with a file, before Spark starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oncemq.cli.support.command import Documented
from oncemq.cli.support.options import json_option
from oncemq.terminal import json_line

if TYPE_CHECKING:
    from oncemq.spark.pipeline.pipeline_file import ValidatedFile


@click.command(
    cls=Documented,
    exits=(0, 2),
    examples="""
        oncemq pipeline validate orders.yaml
        oncemq pipeline validate pipelines/*.yaml
        oncemq pipeline validate orders.yaml --json | jq .line
    """,
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@json_option
@click.pass_context
def validate(ctx: click.Context, /, files: tuple[str, ...], as_json: bool) -> None:
    """Explain all that is wrong with pipelines; run nothing.

    Each problem is a line, `FILE:LINE:COLUMN: what is wrong; what to do`; with --json, an object. Spark is not
    started, so that the SQL itself is only looked over; `oncemq pipeline run` says where Spark can't read it. Modules
    of Python that a pipeline names are imported. Exit code 2 if there are problems.
    """
    from oncemq.protocol.errors import PipelineInvalid
    from oncemq.spark.pipeline.pipeline_file import validate as validate_file

    declared = [validate_file(file) for file in files]
    for one in declared:
        _say(one, as_json)
    if any(one.problems for one in declared):
        ctx.exit(PipelineInvalid.exit_code)


def _say(declared: ValidatedFile, as_json: bool) -> None:
    for problem in declared.problems:
        click.echo(json_line(problem) if as_json else problem.message)
    if not declared.problems and not as_json:
        click.echo(f"{declared.document.file}: no problems.")
