"""`oncemq pipeline deploy`: renders a spark-submit script or a Kubernetes manifest that runs pipelines elsewhere."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oncemq.cli.pipeline.spark_command import parse_conf
from oncemq.cli.support.command import Documented
from oncemq.cli.support.options import CONTEXT
from oncemq.terminal import note

if TYPE_CHECKING:
    from oncemq.spark.deploy import DeclaredPipeline


@click.command(
    cls=Documented,
    exits=(0, 2),
    examples="""
        oncemq pipeline deploy orders.yaml --master spark://spark-1:7077 --python /opt/oncemq/bin/python
        oncemq pipeline deploy orders.yaml --master yarn --archive oncemq-env.tar.gz --to deploy/
        oncemq pipeline deploy orders.yaml --image registry.local/oncemq:1 --schedule "0 * * * *" | kubectl apply -f -
        oncemq pipeline deploy orders.yaml --image registry.local/oncemq:1 --context prod
        oncemq pipeline deploy orders.yaml --image registry.local/oncemq:1 --master k8s://https://kubernetes.default.svc
    """,
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--to", "folder", metavar="DIR", type=click.Path(file_okay=False), help="Write files. [default: stdout]")
@click.option(
    "--master",
    metavar="URL",
    help="The master of Spark: spark://HOST:7077, yarn, k8s://URL. [default: with --image, local[*] in the pod]",
)
@click.option("--url", metavar="URL", help="The broker, as the cluster reaches it. [default: ONCEMQ_URL there]")
@click.option(
    "--context",
    type=CONTEXT,
    metavar="NAME",
    help="The context there, with the broker's address and credentials. [default: that of the file, if it names one]",
)
@click.option("--conf", "pairs", metavar="KEY=VALUE", multiple=True, help="A setting of Spark. May be repeated.")
@click.option(
    "--archive", metavar="FILE", help="spark-submit: an archive of an environment with OnceMQ, for the workers."
)
@click.option("--python", metavar="PATH", help="The Python of the workers in which OnceMQ is installed.")
@click.option(
    "--deploy-mode",
    type=click.Choice(["client", "cluster"]),
    default="client",
    show_default=True,
    help="spark-submit: where the driver runs.",
)
@click.option("--image", metavar="NAME", help="Render a Kubernetes manifest; an image in which OnceMQ is installed.")
@click.option("--schedule", metavar="CRON", help="Kubernetes: run at these times, such as '0 * * * *'.")
@click.option("--namespace", metavar="NAME", default="default", show_default=True, help="Kubernetes.")
@click.option("--cpu", metavar="N", default="1", show_default=True, help="Kubernetes: processors of the driver's pod.")
@click.option("--memory", metavar="SIZE", default="2Gi", show_default=True, help="Kubernetes: memory of that pod.")
@click.option("--executors", type=click.IntRange(min=1), default=2, show_default=True, help="Kubernetes, with k8s://.")
@click.option("--claim", metavar="NAME", help="Kubernetes: an existing claim for the checkpoint. [default: a new one]")
@click.option("--storage", metavar="SIZE", default="1Gi", show_default=True, help="Kubernetes: size of a new claim.")
@click.option(
    "--context-secret",
    metavar="NAME",
    default="oncemq-contexts",
    show_default=True,
    help="Kubernetes: the Secret with contexts.toml, and with the files that it names.",
)
@click.option(
    "--secret", metavar="NAME", help="Kubernetes: the Secret with the variables of the file. [default: oncemq-NAME]"
)
def deploy(
    files: tuple[str, ...],
    folder: str | None,
    master: str | None,
    url: str | None,
    context: str | None,
    pairs: tuple[str, ...],
    archive: str | None,
    python: str | None,
    deploy_mode: str,
    image: str | None,
    schedule: str | None,
    namespace: str,
    cpu: str,
    memory: str,
    executors: int,
    claim: str | None,
    storage: str,
    context_secret: str,
    secret: str | None,
) -> None:
    """Render what runs pipelines elsewhere: a spark-submit script, or, with --image, a Kubernetes manifest.

    Nothing is started. Problems in the files are reported as by `oncemq pipeline validate`. Environment variables in
    the files (`${NAME}`) stay variables: the script requires them, and the manifest refers to a Secret. Their values
    are never written. A context is looked up where the pipeline runs, by the driver and by each worker: with
    spark-submit in the contexts file of each machine, in Kubernetes in a Secret with the files contexts.toml, token and
    so on. docs/howto/spark-clusters.md describes what workers need.
    """
    from oncemq.spark.deploy import (
        KubernetesOptions,
        SubmitOptions,
        read_declared,
        render_manifest,
        render_script,
        resource_name,
    )

    declared = [read_declared(file) for file in files]
    _refuse_same_names(each.pipeline.name for each in declared)
    conf = parse_conf(pairs)
    if image is None:
        if master is None:
            raise click.UsageError("Give --master for spark-submit, or --image for Kubernetes.")
        submit = SubmitOptions(
            master=master,
            deploy_mode=deploy_mode,
            archive=archive or "",
            python=python or "",
            url=url or "",
            context=context or "",
            conf=conf,
        )
        _write(folder, {f"{_joined_name(declared)}.sh": render_script(declared, submit)}, files)
        return
    _refuse_same_names(resource_name(each) for each in declared)
    kubernetes = KubernetesOptions(
        image=image,
        master=master or "local[*]",
        namespace=namespace,
        schedule=schedule or "",
        url=url or "",
        context=context or "",
        context_secret=context_secret,
        cpu=cpu,
        memory=memory,
        claim=claim or "",
        storage=storage,
        secret=secret or "",
        python=python or "python3",
        executors=executors,
        conf=conf,
    )
    _write(folder, {f"{each.pipeline.name}.yaml": render_manifest(each, kubernetes) for each in declared}, files)


def _joined_name(declared: Sequence[DeclaredPipeline]) -> str:
    return "-".join(each.pipeline.name for each in declared)


def _refuse_same_names(names: Iterable[str]) -> None:
    from oncemq.protocol import errors

    for name, count in Counter(names).items():
        if count > 1:
            raise errors.SettingInvalid(f"there are {count} pipelines with the name '{name}'; rename one of them")


def _write(folder: str | None, rendered: dict[str, str], files: Sequence[str]) -> None:
    """`files` are the pipelines, which must not be overwritten."""
    from oncemq.protocol import errors

    if folder is None:
        click.echo("---\n".join(rendered.values()), nl=False)
        return
    os.makedirs(folder, exist_ok=True)
    paths = {os.path.realpath(file) for file in files}
    for name in rendered:
        if os.path.realpath(os.path.join(folder, name)) in paths:
            raise errors.SettingInvalid(f"{folder} contains the pipeline {name} itself; choose another folder for --to")
    for name, text in rendered.items():
        path = Path(folder, name)
        path.write_text(text, encoding="utf-8")
        if name.endswith(".sh"):
            path.chmod(0o755)
        note(f"Wrote {path}.")
