"""`oncemq pipeline validate`: reports all problems of a file, without Spark."""

from __future__ import annotations

import click

from oncemq.cli.support.command import Documented
from oncemq.cli.support.options import json_option
from oncemq.terminal import json_line


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
    """Report all problems of pipelines without running them.

    Each problem is a line, `FILE:LINE:COLUMN: what is wrong; what to do`, or an object with --json. Spark is not
    started, so only obvious errors in SQL are found; `oncemq pipeline run` reports the errors that Spark finds. Python
    modules that a pipeline names are imported. The exit code is 2 if there are problems.
    """
    from oncemq.protocol.errors import PipelineInvalid
    from oncemq.spark.pipeline.pipeline_file import validate as validate_file

    validated = [validate_file(file) for file in files]
    for each in validated:
        for problem in each.problems:
            click.echo(json_line(problem) if as_json else problem.message)
        if not each.problems and not as_json:
            click.echo(f"{each.document.file}: no problems.")
    if any(each.problems for each in validated):
        ctx.exit(PipelineInvalid.exit_code)
