"""Object stores in the file of a pipeline: what can work is accepted before Spark starts, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncemq.spark.pipeline.checks import storage
from oncemq.spark.pipeline.pipeline_file import load
from oncemq.spark.targets.declarations import ParquetTarget
from tests.spark.pipeline.files import changed, problems_in

TARGET = "  topic: totals"


@pytest.mark.parametrize("url", ["s3://lake/x", "s3a://lake", "gs://lake/x", "abfss://c@a.dfs.core.windows.net/x"])
def test_a_target_in_an_object_store_is_accepted(tmp_path: Path, url: str) -> None:
    assert problems_in(tmp_path, changed((TARGET, f"  parquet: {url}"))) == []
    assert problems_in(tmp_path, changed((TARGET, f"  delta: {url}"))) == []


def test_the_settings_of_a_store_are_names_of_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_KEY", "very secret")
    storage = "  parquet: s3://lake/x\n  storage: {access_key_id: LAKE_KEY}"
    file = tmp_path / "pipeline.yaml"
    file.write_text(changed((TARGET, storage)))
    assert load(str(file)).target == ParquetTarget(path="s3://lake/x", storage={"access_key_id": "LAKE_KEY"})
    for wrong in ('"${LAKE_KEY}"', "very secret", "[]"):
        [found] = problems_in(tmp_path, changed((TARGET, storage.replace("LAKE_KEY", wrong))), LAKE_KEY="very secret")
        assert "is not the name of an environment variable" in found
        assert "very" not in found
    [found] = problems_in(tmp_path, changed((TARGET, storage.replace("LAKE_KEY", "NOT_SET"))))
    assert "the environment variable NOT_SET is not set" in found


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("parquet: ftp://lake/x", "ftp:// is not supported as a target"),
        ("delta: s3:///x", "names no bucket"),
        ("parquet: ./x\n  storage: {region: HOME}", "is in no object store"),
    ],
)
def test_what_can_not_work_is_found(tmp_path: Path, target: str, problem: str) -> None:
    assert any(problem in found for found in problems_in(tmp_path, changed((TARGET, f"  {target}"))))


def test_a_checkpoint_in_a_store_needs_a_jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = changed((TARGET, "  parquet: s3://lake/x\ncheckpoint: s3a://lake/checkpoint"))
    [found] = problems_in(tmp_path, text)
    assert "Spark can't store a checkpoint in s3a:// without a jar; put hadoop-aws and what it needs into" in found
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "hadoop-aws-3.4.2.jar").touch()
    assert problems_in(tmp_path, text) == []
    (tmp_path / "jars" / "hadoop-aws-3.4.2.jar").unlink()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.jars.packages org.apache.hadoop:hadoop-aws:3.4.2\n")
    assert problems_in(tmp_path, text) == []


def test_a_session_or_spark_submit_may_bring_the_jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = changed((TARGET, "  parquet: s3://lake/x\ncheckpoint: s3a://lake/checkpoint"))
    settings = {"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.4.2"}
    with monkeypatch.context() as patch:
        patch.setattr(storage, "session_setting", lambda key: settings.get(key, ""))
        assert problems_in(tmp_path, text) == []
    assert len(problems_in(tmp_path, text)) == 1
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "4711")
    assert problems_in(tmp_path, text) == []
