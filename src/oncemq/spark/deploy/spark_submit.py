"""Renders a shell script that runs pipelines with spark-submit.

In client mode the driver runs where the script runs, in the Python that runs the script's commands. In cluster mode it
runs on the cluster, in the Python of the archive.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

import msgspec

from oncemq.protocol import errors
from oncemq.spark.deploy.declared import DeclaredPipeline, check_broker

#: The name under which an archive is unpacked in the working folder of each executor.
ENVIRONMENT = "environment"
#: Stops with an error if a variable is not set, without printing its value.
_REQUIRE = ': "${{{name}:?set it: the pipeline {pipeline} needs it}}"'


class SubmitOptions(msgspec.Struct, frozen=True, kw_only=True):
    #: `spark://HOST:7077`, `yarn` or `k8s://…`.
    master: str
    deploy_mode: str = "client"
    #: An archive of a virtual or conda environment with OnceMQ. "" = OnceMQ is installed on each worker.
    archive: str = ""
    #: The Python of the workers in which OnceMQ is installed, if there is no archive.
    python: str = ""
    #: The broker's URL; "" = ONCEMQ_URL where the driver runs.
    url: str = ""
    #: The name of a context on the machines of the driver and of the workers; "" = that of the pipeline, or none.
    context: str = ""
    conf: Mapping[str, str] = {}


def render_script(pipelines: Sequence[DeclaredPipeline], options: SubmitOptions) -> str:
    """Raises SettingInvalid for options that do not fit together."""
    _check(pipelines, options)
    lines = [
        "#!/bin/sh",
        f"# Runs {_names(pipelines)}. The next run continues where this one ends.",
    ]
    lines += ["set -eu", *_requirements(pipelines)]
    if options.deploy_mode == "client":
        lines.append(': "${PYSPARK_DRIVER_PYTHON:=$(command -v python3)}"')
        lines.append(f': "${{JAVA_HOME:=$("$PYSPARK_DRIVER_PYTHON" -c {shlex.quote(_FIND_JAVA)})}}"')
        lines.append("export PYSPARK_DRIVER_PYTHON JAVA_HOME")
        lines.append(f'program=$("$PYSPARK_DRIVER_PYTHON" -c {shlex.quote(_FIND)})')
    else:
        lines.append(f"program=$(python3 -c {shlex.quote(_FIND)})")
    arguments = [*_arguments(pipelines, options), '"$program"', *_files(pipelines, options), '"$@"']
    lines.append("exec spark-submit \\\n  " + " \\\n  ".join(arguments))
    return "\n".join(lines) + "\n"


_FIND_JAVA = "from oncemq.spark import java; print(java.find_java(is_quiet=True))"
_FIND = "import pyspark_oncemq, os; print(os.path.join(os.path.dirname(pyspark_oncemq.__file__), 'submit.py'))"


def _check(pipelines: Sequence[DeclaredPipeline], options: SubmitOptions) -> None:
    check_broker(options.url, options.context)
    if options.archive and options.python:
        raise errors.SettingInvalid("an archive contains its own Python: give either --archive or --python")
    if options.deploy_mode != "cluster":
        return
    if not options.master.startswith(("yarn", "k8s://")):
        raise errors.SettingInvalid(f"Spark has no cluster mode for Python programs on '{options.master}': use client")
    for each in pipelines:
        if each.is_checkpoint_local:
            raise errors.SettingInvalid(
                f"{each.file}: in cluster mode, the checkpoint must be a URL that all machines reach, such as "
                "hdfs://… or s3a://…, because the next driver may run on another machine"
            )
        if each.variables:
            raise errors.SettingInvalid(
                f"{each.file}: in cluster mode, the variables {', '.join(each.variables)} would have to be passed in "
                "clear text; use client mode, or put the values into a file that only the driver can read"
            )
        for path in _shipped(each):
            if "," in path or "#" in path:
                raise errors.SettingInvalid(f"{path}: spark-submit can't send a file whose name has a comma or a #")
        for name in each.attachments:
            if "/" in name:
                raise errors.SettingInvalid(
                    f"{each.file}: in cluster mode, all files are in one folder; put {name} into the folder of the file"
                )


def _shipped(declared: DeclaredPipeline) -> list[str]:
    """The files that a driver on the cluster needs."""
    return [declared.file, *(declared.path_of(name) for name in declared.attachments)]


def _requirements(pipelines: Sequence[DeclaredPipeline]) -> list[str]:
    # The name of a pipeline has no character that is special to the shell. The name of a file may have some.
    return [_REQUIRE.format(name=name, pipeline=each.pipeline.name) for each in pipelines for name in each.variables]


def _arguments(pipelines: Sequence[DeclaredPipeline], options: SubmitOptions) -> list[str]:
    """The options of spark-submit, quoted for the shell."""
    found = [f"--master {shlex.quote(options.master)}", f"--deploy-mode {options.deploy_mode}"]
    found.append(f"--name {shlex.quote(','.join(each.pipeline.name for each in pipelines))}")
    settings = _settings(options) | dict(options.conf)
    if options.archive:
        found.append(f"--archives {shlex.quote(f'{options.archive}#{ENVIRONMENT}')}")
    if options.deploy_mode == "cluster":
        files = dict.fromkeys(path for each in pipelines for path in _shipped(each))
        found.append(f"--files {shlex.quote(','.join(files))}")
    else:
        # Without it, the driver would run the Python of the workers, which may not exist here.
        found.append('--conf "spark.pyspark.driver.python=$PYSPARK_DRIVER_PYTHON"')
    return found + [f"--conf {shlex.quote(f'{name}={value}')}" for name, value in settings.items()]


def _settings(options: SubmitOptions) -> dict[str, str]:
    """The Python of the workers, and the environment of a driver on the cluster."""
    python = f"./{ENVIRONMENT}/bin/python" if options.archive else options.python
    found = {"spark.pyspark.python": python} if python else {}
    if options.deploy_mode == "cluster":
        prefix = "spark.yarn.appMasterEnv" if options.master.startswith("yarn") else "spark.kubernetes.driverEnv"
        if python:
            found[f"{prefix}.PYSPARK_PYTHON"] = python
        if options.url:
            found[f"{prefix}.ONCEMQ_URL"] = options.url
        if options.context:
            found[f"{prefix}.ONCEMQ_CONTEXT"] = options.context
    return found


def _files(pipelines: Sequence[DeclaredPipeline], options: SubmitOptions) -> list[str]:
    if options.deploy_mode == "cluster":
        # --files puts them into the working folder of the driver.
        return [shlex.quote(each.file_name) for each in pipelines]
    broker = [f"--url {shlex.quote(options.url)}"] if options.url else []
    broker += [f"--context {options.context}"] if options.context else []
    return [*(shlex.quote(each.file) for each in pipelines), *broker]


def _names(pipelines: Sequence[DeclaredPipeline]) -> str:
    return ", ".join(each.pipeline.name for each in pipelines)
