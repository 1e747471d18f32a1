"""Scripts for spark-submit: what they run, read by a shell with a spark-submit that only prints its arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oncemq.cli.pipeline.deploy import deploy
from oncemq.protocol import errors
from oncemq.spark.deploy import SubmitOptions, read_declared, render_script
from tests.spark.deploy.files import AVRO, orders, topics


def submitted(folder: Path, script: str, *arguments: str, **environment: str) -> list[str]:
    """The arguments that the script passes to spark-submit."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    fake = programs / "spark-submit"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    # A session of Spark in this process sets the Python of its own workers.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    variables = {**own, "JAVA_HOME": "/opt/java", "PATH": path, **environment}
    found = subprocess.run(
        ["sh", "-c", script, "run", *arguments], env=variables, capture_output=True, text=True, check=True
    )
    return found.stdout.splitlines()


def script_of(*files: str, **options: Any) -> str:
    return render_script([read_declared(file) for file in files], SubmitOptions(**options))


def test_workers_use_the_python_of_the_archive(tmp_path: Path) -> None:
    script = script_of(topics(tmp_path), master="yarn", archive="oncemq env.tar.gz", url="oncemq://broker:5554")
    arguments = submitted(tmp_path, script, "--quiet")
    assert arguments[:8] == [
        "--master",
        "yarn",
        "--deploy-mode",
        "client",
        "--name",
        "copies",
        "--archives",
        "oncemq env.tar.gz#environment",
    ]
    assert arguments[8:10] == ["--conf", f"spark.pyspark.driver.python={Path(sys.executable).parent / 'python3'}"]
    assert arguments[10:12] == ["--conf", "spark.pyspark.python=./environment/bin/python"]
    program = Path(arguments[12])
    assert (program.name, program.exists()) == ("submit.py", True)
    assert arguments[13:] == [str(tmp_path / "copies.yaml"), "--url", "oncemq://broker:5554", "--quiet"]


def test_a_missing_variable_stops_the_script_and_its_value_is_not_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERS_DATABASE", "postgresql://ada:hunter2@db/orders")
    script = script_of(orders(tmp_path), topics(tmp_path), master="spark://host:7077", python="/opt/oncemq/bin/python")
    assert "hunter2" not in script
    arguments = submitted(tmp_path, script)
    assert "spark.pyspark.python=/opt/oncemq/bin/python" in arguments
    assert arguments[-2:] == [str(tmp_path / "orders.yaml"), str(tmp_path / "copies.yaml")]
    monkeypatch.delenv("ORDERS_DATABASE")
    with pytest.raises(subprocess.CalledProcessError) as stopped:
        submitted(tmp_path, script)
    assert "ORDERS_DATABASE: set it: the pipeline Order_totals needs it" in stopped.value.stderr


def test_the_name_of_a_file_is_no_command(tmp_path: Path) -> None:
    hostile = tmp_path / "$(touch ran) `touch ran` \"' }.yaml"
    hostile.write_text(Path(orders(tmp_path)).read_text())
    script = script_of(str(hostile), master="spark://host:7077\ntouch ran", url="tcp://b:1;touch ran")
    with pytest.raises(subprocess.CalledProcessError):
        submitted(tmp_path, f"cd {tmp_path}\n{script}")
    arguments = submitted(tmp_path, f"cd {tmp_path}\n{script}", ORDERS_DATABASE="postgresql://db")
    assert arguments[-3:] == [str(hostile), "--url", "tcp://b:1;touch ran"]
    assert not (tmp_path / "ran").exists()


def test_variables_in_comments_are_not_required(tmp_path: Path) -> None:
    file = Path(topics(tmp_path))
    file.write_text(file.read_text() + "# target: ${FORMER_DATABASE}\n")
    assert read_declared(str(file)).variables == ()


def test_a_driver_on_the_cluster_gets_its_files(tmp_path: Path) -> None:
    file = Path(topics(tmp_path))
    with pytest.raises(errors.SettingInvalid, match="the checkpoint must be a URL"):
        script_of(str(file), master="yarn", deploy_mode="cluster")
    file.write_text(file.read_text() + "checkpoint: hdfs://name/checkpoints/copies\n")
    script = script_of(
        str(file), master="yarn", deploy_mode="cluster", archive="env.tar.gz", url="oncemq://broker:5554"
    )
    arguments = submitted(tmp_path, script)
    assert arguments[arguments.index("--files") + 1] == str(file)
    assert "spark.yarn.appMasterEnv.PYSPARK_PYTHON=./environment/bin/python" in arguments
    assert "spark.yarn.appMasterEnv.ONCEMQ_URL=oncemq://broker:5554" in arguments
    assert arguments[-1] == "copies.yaml"
    definition = "value: {format: avro, schema_file: ./order.avsc}\n"
    file.write_text(file.read_text() + definition)
    (tmp_path / "order.avsc").write_text(AVRO)
    arguments = submitted(tmp_path, script_of(str(file), master="yarn", deploy_mode="cluster", archive="env.tar.gz"))
    assert arguments[arguments.index("--files") + 1] == f"{file},{tmp_path / 'order.avsc'}"
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "order.avsc").write_text(AVRO)
    file.write_text(file.read_text().replace("./order.avsc", "schemas/order.avsc"))
    with pytest.raises(errors.SettingInvalid, match="all files are in one folder"):
        script_of(str(file), master="yarn", deploy_mode="cluster")
    with pytest.raises(errors.SettingInvalid, match="no cluster mode"):
        script_of(str(file), master="spark://host:7077", deploy_mode="cluster")
    secret = orders(tmp_path, "available-now\ncheckpoint: hdfs://name/checkpoints/orders")
    with pytest.raises(errors.SettingInvalid, match="in clear text"):
        script_of(secret, master="yarn", deploy_mode="cluster")


def test_the_command_needs_a_place_to_run(tmp_path: Path) -> None:
    assert CliRunner().invoke(deploy, [topics(tmp_path)]).exit_code == 2
    with pytest.raises(errors.SettingInvalid, match="either --archive or --python"):
        script_of(topics(tmp_path), master="yarn", archive="a.tar.gz", python="/opt/python")
    result = CliRunner().invoke(deploy, [topics(tmp_path), "--master", "yarn", "--to", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert os.access(tmp_path / "out" / "copies.sh", os.X_OK)


def test_a_context_is_passed_on_by_its_name(tmp_path: Path) -> None:
    file = topics(tmp_path)
    arguments = submitted(tmp_path, script_of(file, master="spark://s:7077", context="prod"))
    assert arguments[-3:] == [file, "--context", "prod"]
    script = script_of(_with_url(file), master="yarn", deploy_mode="cluster", archive="e.tar.gz", context="prod")
    assert "spark.yarn.appMasterEnv.ONCEMQ_CONTEXT=prod" in submitted(tmp_path, script)
    with pytest.raises(errors.SettingInvalid, match="either --url or --context"):
        script_of(file, master="yarn", url="oncemq://b:1", context="prod")
    runner = CliRunner().invoke(deploy, [file, "--master", "yarn", "--archive", "e.tar.gz", "--context", "prod"])
    assert "--context prod" in runner.stdout


def _with_url(file: str) -> str:
    """In cluster mode, the checkpoint is where all machines reach it."""
    path = Path(file)
    path.write_text(path.read_text() + "checkpoint: hdfs:///checkpoints/copies\n")
    return file
