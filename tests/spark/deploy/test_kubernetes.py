"""Manifests: valid for Kubernetes, the right workload for each trigger, and no secrets in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from oncemq.cli.pipeline.deploy import deploy
from oncemq.protocol import errors
from oncemq.spark.deploy import KubernetesOptions, read_declared, render_manifest, resource_name
from oncemq.spark.pipeline.pipeline_file import load
from tests.spark.deploy.files import AVRO, orders, topics

IMAGE = "registry.local/oncemq:0.1"


def rendered(file: str, **options: Any) -> dict[str, Any]:
    """The documents of a manifest by their kinds, each valid in the schema of Kubernetes."""
    text = render_manifest(read_declared(file), KubernetesOptions(image=IMAGE, **options))
    documents = list(yaml.safe_load_all(text))
    for document in documents:
        kubernetes_validate.validate(document, "1.30", strict=True)
    return {document["kind"]: document for document in documents}


def pod(workload: dict[str, Any]) -> dict[str, Any]:
    spec = workload["spec"]
    spec = spec["jobTemplate"]["spec"] if "jobTemplate" in spec else spec
    return dict(spec["template"]["spec"])


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod(workload)["containers"]
    return dict(found)


@pytest.mark.parametrize(
    ("trigger", "schedule", "kind"),
    [
        ("available-now", "", "Job"),
        ("available-now", "*/10 * * * *", "CronJob"),
        ("{every: 5s}", "", "Deployment"),
    ],
)
def test_the_trigger_decides_the_workload(tmp_path: Path, trigger: str, schedule: str, kind: str) -> None:
    found = rendered(orders(tmp_path, trigger), schedule=schedule, url="oncemq://oncemq:5554")
    assert set(found) == {"ConfigMap", "PersistentVolumeClaim", kind}
    driver = container(found[kind])
    assert driver["command"][:3] == ["oncemq", "pipeline", "run"]
    assert driver["command"][-2:] == ["--checkpoint", "/var/lib/oncemq/checkpoints/Order_totals"]
    environment = {each["name"]: each for each in driver["env"]}
    assert environment["ONCEMQ_URL"]["value"] == "oncemq://oncemq:5554"
    mounts = {each["name"]: each["mountPath"] for each in driver["volumeMounts"]}
    assert mounts == {"pipeline": "/etc/oncemq/pipeline", "scratch": "/tmp", "state": "/var/lib/oncemq"}


def test_secrets_are_referred_to_and_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_DATABASE", "postgresql://ada:hunter2@db/orders")
    text = render_manifest(read_declared(orders(tmp_path)), KubernetesOptions(image=IMAGE))
    assert "hunter2" not in text
    assert "create secret generic oncemq-order-totals --from-literal=ORDERS_DATABASE=…" in text
    (variable,) = [each for each in container(rendered(orders(tmp_path))["Job"])["env"] if "valueFrom" in each]
    reference = {"secretKeyRef": {"name": "oncemq-order-totals", "key": "ORDERS_DATABASE"}}
    assert variable == {"name": "ORDERS_DATABASE", "valueFrom": reference}
    assert "${ORDERS_DATABASE}" in rendered(orders(tmp_path))["ConfigMap"]["data"]["orders.yaml"]


def test_the_file_in_the_manifest_is_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_DATABASE", "postgresql://db/orders")
    file = orders(tmp_path)
    copy = tmp_path / "copy.yaml"
    copy.write_text(rendered(file)["ConfigMap"]["data"]["orders.yaml"])
    assert load(str(copy)) == load(file)


def test_on_a_cluster_executors_find_the_driver_and_may_be_created(tmp_path: Path) -> None:
    master = "k8s://https://kubernetes.default.svc"
    found = rendered(topics(tmp_path), master=master, namespace="data", claim="checkpoints", executors=3)
    assert set(found) == {"ConfigMap", "ServiceAccount", "Role", "RoleBinding", "Service", "Job"}
    command = container(found["Job"])["command"]
    settings = dict(each.split("=", 1) for each in command if each.startswith("spark."))
    assert settings["spark.driver.host"] == "oncemq-copies.data.svc"
    assert settings["spark.executor.instances"] == "3"
    assert settings["spark.kubernetes.container.image"] == IMAGE
    pod = found["Job"]["spec"]["template"]
    assert pod["spec"]["serviceAccountName"] == found["RoleBinding"]["subjects"][0]["name"]
    assert pod["metadata"]["labels"] == found["Service"]["spec"]["selector"]
    ports = {str(each["port"]) for each in found["Service"]["spec"]["ports"]}
    assert ports == {settings["spark.driver.port"], settings["spark.blockManager.port"]}
    (claim,) = [each for each in pod["spec"]["volumes"] if "persistentVolumeClaim" in each]
    assert claim["persistentVolumeClaim"]["claimName"] == "checkpoints"


def test_the_settings_of_an_object_store_are_secrets_of_driver_and_executors(tmp_path: Path) -> None:
    file = Path(topics(tmp_path))
    target = "  delta: s3://lake/copies\n  storage: {access_key_id: LAKE_KEY}"
    file.write_text(file.read_text().replace("  topic: copies\n  create: true", target))
    driver = container(rendered(str(file), master="k8s://https://kubernetes.default.svc", secret="lake")["Job"])
    assert "spark.kubernetes.executor.secretKeyRef.LAKE_KEY=lake:LAKE_KEY" in driver["command"]
    (variable,) = [each for each in driver["env"] if each["name"] == "LAKE_KEY"]
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "lake", "key": "LAKE_KEY"}}


def test_what_would_be_lost_with_the_container_is_refused(tmp_path: Path) -> None:
    file = Path(topics(tmp_path))
    file.write_text(file.read_text().replace("  topic: copies\n  create: true", "  parquet: ./lake"))
    with pytest.raises(errors.SettingInvalid, match="lost with it"):
        rendered(str(file))
    file.write_text(file.read_text().replace("./lake", "/var/lib/oncemq/lake"))
    assert "PersistentVolumeClaim" in rendered(str(file))
    with pytest.raises(errors.SettingInvalid, match="runs continuously"):
        rendered(orders(tmp_path, "{every: 5s}"), schedule="0 * * * *")
    with pytest.raises(errors.SettingInvalid, match="not a schedule"):
        rendered(topics(tmp_path), schedule="hourly")


def test_executors_do_not_have_the_volume(tmp_path: Path) -> None:
    file = Path(topics(tmp_path))
    file.write_text(file.read_text().replace("  topic: copies\n  create: true", "  delta: /var/lib/oncemq/lake"))
    assert "Job" in rendered(str(file))
    with pytest.raises(errors.SettingInvalid, match="executors do not have the volume"):
        rendered(str(file), master="k8s://https://kubernetes.default.svc")


def test_tables_must_be_where_the_container_finds_them(tmp_path: Path) -> None:
    file = Path(topics(tmp_path))
    (tmp_path / "names.csv").write_text("id,name\n")
    table = 'tables: {names: {csv: names.csv, schema: "id bigint, name string"}}\n'
    file.write_text(
        file.read_text() + table + "transform: {sql: SELECT name FROM messages JOIN names ON name = value}\n"
    )
    with pytest.raises(errors.SettingInvalid, match="where it does not exist"):
        rendered(str(file))
    file.write_text(file.read_text().replace("names.csv", "/var/lib/oncemq/names.csv"))
    assert "PersistentVolumeClaim" in rendered(str(file))


def test_files_that_the_pipeline_names_are_in_the_config_map(tmp_path: Path) -> None:
    """Under keys that a ConfigMap accepts, and at the paths that the pipeline names."""
    plain = Path(topics(tmp_path))
    file = plain.rename(tmp_path / "$(HOME) copies.yaml")
    more = "value: {format: avro, schema_file: schemas/order v1.avsc}\ntransform: {python: steps.copies:copy}\n"
    file.write_text(file.read_text() + more)
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "order v1.avsc").write_text(AVRO)
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "copies.py").write_text("def copy(rows):\n    return rows\n")
    found = rendered(str(file))
    assert set(found["ConfigMap"]["data"]) == {"__HOME__copies.yaml", "steps_copies.py", "schemas_order_v1.avsc"}
    (volume,) = [each["configMap"] for each in pod(found["Job"])["volumes"] if "configMap" in each]
    assert {each["key"]: each["path"] for each in volume["items"]} == {
        "__HOME__copies.yaml": "__HOME__copies.yaml",
        "steps_copies.py": "steps/copies.py",
        "schemas_order_v1.avsc": "schemas/order v1.avsc",
    }
    assert "/etc/oncemq/pipeline/__HOME__copies.yaml" in container(found["Job"])["command"]
    (tmp_path / "inner").mkdir()
    moved = file.rename(tmp_path / "inner" / "copies.yaml")
    moved.write_text(moved.read_text().replace("schemas/", "../schemas/").replace("steps.copies:copy", "os:fspath"))
    with pytest.raises(errors.SettingInvalid, match="is not in the folder of the file"):
        rendered(str(moved))


@pytest.mark.parametrize(
    ("url", "is_refused"),
    [
        ("postgresql://ada:hunter2@db/orders", True),
        ("postgresql://db/orders?user=ada&password=hunter2", True),
        ("postgresql://ada:${PASSWORD}@db/orders", False),
        ("postgresql://ada@db:5432/orders", False),
    ],
)
def test_a_password_in_the_file_is_refused(tmp_path: Path, url: str, is_refused: bool) -> None:
    file = Path(orders(tmp_path))
    file.write_text(file.read_text().replace("${ORDERS_DATABASE}", url))
    if not is_refused:
        assert "Job" in rendered(str(file))
        return
    with pytest.raises(errors.SettingInvalid, match="in clear text in a ConfigMap") as refused:
        rendered(str(file))
    assert "hunter2" not in str(refused.value)


def test_two_pipelines_never_have_one_name(tmp_path: Path) -> None:
    first = Path(topics(tmp_path))
    second = tmp_path / "second.yaml"
    for name in ("copies", "Copies"):
        second.write_text(first.read_text().replace("name: copies", f"name: {name}"))
        result = CliRunner().invoke(deploy, [str(first), str(second), "--image", IMAGE])
        assert isinstance(result.exception, errors.SettingInvalid)
    names = []
    for end in ("one", "two"):
        second.write_text(first.read_text().replace("name: copies", f"name: {'copies-' * 10}{end}"))
        names.append(resource_name(read_declared(str(second))))
    assert len(set(names)) == 2
    assert all(len(name) <= 52 for name in names)


def test_the_file_of_a_pipeline_is_not_overwritten(tmp_path: Path) -> None:
    file = Path(topics(tmp_path))
    before = file.read_text()
    result = CliRunner().invoke(deploy, [str(file), "--image", IMAGE, "--to", str(tmp_path)])
    assert isinstance(result.exception, errors.SettingInvalid)
    assert file.read_text() == before


def test_the_command_writes_a_file_for_each_pipeline(tmp_path: Path) -> None:
    files = [orders(tmp_path), topics(tmp_path)]
    result = CliRunner().invoke(deploy, [*files, "--image", IMAGE, "--to", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["Order_totals.yaml", "copies.yaml"]
    printed = CliRunner().invoke(deploy, [*files, "--image", IMAGE])
    assert [each["kind"] for each in yaml.safe_load_all(printed.stdout)].count("Job") == 2


def test_a_context_is_looked_up_in_a_secret_that_driver_and_executors_have(tmp_path: Path) -> None:
    file = topics(tmp_path)
    cluster = {"master": "k8s://https://kubernetes.default.svc"}
    workload = rendered(file, context="prod", context_secret="brokers", **cluster)["Job"]
    driver = container(workload)
    environment = {each["name"]: each.get("value") for each in driver["env"]}
    path = "/etc/oncemq/context"
    assert (environment["ONCEMQ_CONTEXT"], environment["ONCEMQ_CONTEXTS"]) == ("prod", f"{path}/contexts.toml")
    assert {"name": "context", "mountPath": path} in driver["volumeMounts"]
    secret = {"secretName": "brokers", "defaultMode": 0o440}
    assert {"name": "context", "secret": secret} in pod(workload)["volumes"]
    assert f"spark.kubernetes.executor.secrets.brokers={path}" in driver["command"]
    assert f"spark.executorEnv.ONCEMQ_CONTEXTS={path}/contexts.toml" in driver["command"]
    text = render_manifest(read_declared(file), KubernetesOptions(image=IMAGE, context="prod"))
    assert "create secret generic oncemq-contexts --from-file=contexts.toml" in text


def test_the_context_of_the_file_is_used_unless_an_address_is_given(tmp_path: Path) -> None:
    file = Path(topics(tmp_path))
    file.write_text(file.read_text() + "context: prod\n")
    names = [each["name"] for each in container(rendered(str(file))["Job"])["env"]]
    assert "ONCEMQ_CONTEXTS" in names
    assert "ONCEMQ_CONTEXT" not in names
    names = [each["name"] for each in container(rendered(str(file), url="oncemq://oncemq:5554")["Job"])["env"]]
    assert "ONCEMQ_CONTEXTS" not in names


def test_an_address_and_a_context_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(errors.SettingInvalid, match="either --url or --context"):
        rendered(topics(tmp_path), url="oncemq://oncemq:5554", context="prod")
    with pytest.raises(errors.SettingInvalid, match="not the name of a context"):
        rendered(topics(tmp_path), context="a b")
