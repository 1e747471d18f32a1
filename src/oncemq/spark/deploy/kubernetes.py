"""Renders a Kubernetes manifest for each pipeline.

    available-now                a Job; with a schedule, a CronJob
    every                        a Deployment with one pod: two drivers on one checkpoint would disturb each other
    the files                    a ConfigMap
    ${NAME} in the file          the key NAME of a Secret that you create: the manifest only refers to it
    a context                    files of another Secret, contexts.toml and what it names, for the driver and executors
    a checkpoint in a folder     a PersistentVolumeClaim, unless one is named
    master k8s://…               a service account that may create executors, and a service for their connections

With a local master, which is the default, driver and tasks run in one pod.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from oncemq.config.contexts import FILE_NAME as CONTEXTS_FILE
from oncemq.protocol import errors
from oncemq.spark.deploy.declared import DeclaredPipeline, check_broker

_FILES = "/etc/oncemq/pipeline"
_STATE = "/var/lib/oncemq"
_CONTEXT = "/etc/oncemq/context"
_DRIVER_PORT, _BLOCK_PORT = 7078, 7079
#: The time that a run has to stop after SIGTERM.
_GRACE_S = 60
#: The names of Jobs that a CronJob creates are longer by 11 characters, and have at most 63.
_NAME_MAX = 52
#: Any user other than root.
_USER = 65532
#: The group of that user may read files of a Secret, and nobody else.
_SECRET_MODE = 0o440

Manifest = dict[str, Any]


class KubernetesOptions(msgspec.Struct, frozen=True, kw_only=True):
    #: An image with OnceMQ, `pip install "oncemq[spark]"`.
    image: str
    master: str = "local[*]"
    namespace: str = "default"
    #: A schedule of cron, such as `0 * * * *`. "" = run once.
    schedule: str = ""
    url: str = ""
    #: The name of a context in the file of `context_secret`; "" = that of the pipeline, if `url` is not given.
    context: str = ""
    #: The Secret with contexts.toml and the files that it names.
    context_secret: str = "oncemq-contexts"
    cpu: str = "1"
    memory: str = "2Gi"
    #: The claim of the checkpoint's volume; "" = one is rendered.
    claim: str = ""
    storage: str = "1Gi"
    #: The Secret with the variables; "" = `oncemq-NAME`.
    secret: str = ""
    #: The Python in the image.
    python: str = "python3"
    executors: int = 2
    conf: Mapping[str, str] = {}


def render_manifest(declared: DeclaredPipeline, options: KubernetesOptions) -> str:
    """Raises SettingInvalid for options that do not fit together."""
    import yaml

    _check(declared, options)
    documents = _Renderer(declared, options).documents()
    head = "".join(f"# {line}\n" for line in _head(declared, options))
    return head + "---\n".join(yaml.dump(each, Dumper=_dumper(), sort_keys=False, width=120) for each in documents)


def _check(declared: DeclaredPipeline, options: KubernetesOptions) -> None:
    check_broker(options.url, options.context)
    if options.schedule and declared.pipeline.trigger.every:
        raise errors.SettingInvalid(
            f"{declared.file}: the pipeline runs continuously (every {declared.pipeline.trigger.every}), so it has no "
            "schedule; use trigger: available-now"
        )
    if options.schedule and len(options.schedule.split()) != 5:
        raise errors.SettingInvalid(f"'{options.schedule}' is not a schedule of cron, such as '0 * * * *'")
    if declared.has_password:
        raise errors.SettingInvalid(
            f"{declared.file}: the password of the database would be in clear text in a ConfigMap; write a variable "
            "for it, such as postgres: ${DATABASE}"
        )
    for name in declared.attachments:
        if name.startswith(("/", "~", "..")):
            raise errors.SettingInvalid(f"{declared.file}: {name} is not in the folder of the file; put it there")
    _check_folders(declared, options)


def _check_folders(declared: DeclaredPipeline, options: KubernetesOptions) -> None:
    local = [*declared.local_folders, *declared.local_tables]
    for folder in local:
        if not folder.startswith(f"{_STATE}/"):
            fate = "and be lost with it" if folder in declared.local_folders else "where it does not exist"
            raise errors.SettingInvalid(
                f"{declared.file}: {folder} would be inside the container, {fate}; use a URL (s3://…), or a folder "
                f"below {_STATE}, which is on the volume"
            )
    if local and _is_cluster(options):
        raise errors.SettingInvalid(
            f"{declared.file}: executors do not have the volume with {local[0]}; use a URL (s3://…), or a local master"
        )


def _is_cluster(options: KubernetesOptions) -> bool:
    return options.master.startswith("k8s://")


def _head(declared: DeclaredPipeline, options: KubernetesOptions) -> list[str]:
    name = resource_name(declared)
    lines = [f"The pipeline {declared.pipeline.name}. Apply with: kubectl apply -f FILE"]
    if declared.variables:
        literals = " ".join(f"--from-literal={each}=…" for each in declared.variables)
        secret = options.secret or name
        lines.append(f"Before that: kubectl -n {options.namespace} create secret generic {secret} {literals}")
    if context := _context(declared, options):
        create = f"kubectl -n {options.namespace} create secret generic {options.context_secret}"
        lines.append(f"Before that: {create} --from-file=contexts.toml --from-file=token --from-file=ca.pem")
        lines.append(f'contexts.toml: [context.{context}] url = "oncemq://…", token_file = "token", tls = "ca.pem"')
    return lines


def _context(declared: DeclaredPipeline, options: KubernetesOptions) -> str:
    """The context that the pipeline uses where it runs; "" = none."""
    return "" if options.url else options.context or declared.pipeline.context


def resource_name(declared: DeclaredPipeline) -> str:
    """A name that Kubernetes accepts, for all resources of a pipeline."""
    text = re.sub(r"[^a-z0-9-]+", "-", declared.pipeline.name.lower()).strip("-")
    name = f"oncemq-{text}".rstrip("-")
    if len(name) <= _NAME_MAX:
        return name
    # Long names may begin alike.
    digest = hashlib.sha256(declared.pipeline.name.encode()).hexdigest()[:8]
    return f"{name[: _NAME_MAX - 9].rstrip('-')}-{digest}"


class _Renderer:
    def __init__(self, declared: DeclaredPipeline, options: KubernetesOptions) -> None:
        self._declared = declared
        self._options = options
        self._name = resource_name(declared)
        self._is_cluster = _is_cluster(options)
        self._context = _context(declared, options)

    def documents(self) -> list[Manifest]:
        options = self._options
        found = [self._config_map()]
        if self._needs_volume and not options.claim:
            found.append(self._claim())
        if self._is_cluster:
            found += [*self._access(), self._service()]
        if self._declared.pipeline.trigger.every:
            return [*found, self._deployment()]
        return [*found, self._cron_job() if options.schedule else self._job()]

    @property
    def _needs_volume(self) -> bool:
        return self._declared.is_checkpoint_local or bool(self._declared.local_folders or self._declared.local_tables)

    @property
    def _variables(self) -> tuple[str, ...]:
        return self._declared.variables

    @property
    def _secret(self) -> str:
        return self._options.secret or self._name

    def _metadata(self, name: str = "") -> Manifest:
        return {"name": name or self._name, "namespace": self._options.namespace, "labels": self._labels}

    @property
    def _labels(self) -> dict[str, str]:
        return {"app.kubernetes.io/name": "oncemq-pipeline", "app.kubernetes.io/instance": self._name}

    # What the workload uses.

    def _config_map(self) -> Manifest:
        data = {self._file_key: self._declared.text}
        for name, key in self._attachment_keys.items():
            with open(self._declared.path_of(name), encoding="utf-8") as file:
                data[key] = file.read()
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": self._metadata(), "data": data}

    @property
    def _file_key(self) -> str:
        return _key(self._declared.file_name)

    @property
    def _attachment_keys(self) -> dict[str, str]:
        """The keys of the ConfigMap by the names of the files."""
        found: dict[str, str] = {}
        for name in self._declared.attachments:
            key = _key(name)
            is_taken = key == self._file_key or key in found.values()
            found[name] = f"{len(found)}-{key}" if is_taken else key
        return found

    def _claim(self) -> Manifest:
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": self._metadata(),
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": self._options.storage}},
            },
        }

    def _access(self) -> list[Manifest]:
        """The rights that the driver needs to run executors."""
        rules = [
            {
                "apiGroups": [""],
                "resources": ["pods", "services", "configmaps", "persistentvolumeclaims"],
                "verbs": ["create", "get", "list", "watch", "patch", "delete", "deletecollection"],
            }
        ]
        api, group = "rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
        subject = {"kind": "ServiceAccount", "name": self._name, "namespace": self._options.namespace}
        role = {"kind": "Role", "name": self._name, "apiGroup": group}
        return [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": self._metadata()},
            {"apiVersion": api, "kind": "Role", "metadata": self._metadata(), "rules": rules},
            {
                "apiVersion": api,
                "kind": "RoleBinding",
                "metadata": self._metadata(),
                "subjects": [subject],
                "roleRef": role,
            },
        ]

    def _service(self) -> Manifest:
        """By this name, executors find the driver."""
        ports = [{"name": "driver", "port": _DRIVER_PORT}, {"name": "blocks", "port": _BLOCK_PORT}]
        spec = {"clusterIP": "None", "selector": self._labels, "ports": ports}
        return {"apiVersion": "v1", "kind": "Service", "metadata": self._metadata(), "spec": spec}

    # The workload.

    def _job(self) -> Manifest:
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": self._metadata(), "spec": self._job_spec()}

    def _job_spec(self) -> Manifest:
        return {"backoffLimit": 3, "template": self._template("Never")}

    def _cron_job(self) -> Manifest:
        spec = {
            "schedule": self._options.schedule,
            # A second driver on the checkpoint would fail.
            "concurrencyPolicy": "Forbid",
            "jobTemplate": {"spec": self._job_spec()},
        }
        return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": self._metadata(), "spec": spec}

    def _deployment(self) -> Manifest:
        spec = {
            "replicas": 1,
            # The old driver ends before the new one starts.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": self._labels},
            "template": self._template("Always"),
        }
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": self._metadata(), "spec": spec}

    def _template(self, restart: str) -> Manifest:
        spec: Manifest = {
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": _GRACE_S,
            "automountServiceAccountToken": self._is_cluster,
            "securityContext": {"runAsNonRoot": True, "runAsUser": _USER, "fsGroup": _USER},
            "containers": [self._container()],
            "volumes": list(self._mounts().values()),
        }
        if self._is_cluster:
            spec["serviceAccountName"] = self._name
        return {"metadata": {"labels": self._labels}, "spec": spec}

    def _container(self) -> Manifest:
        options = self._options
        resources = {"cpu": options.cpu, "memory": options.memory}
        return {
            "name": "driver",
            "image": options.image,
            "command": ["oncemq", *self._arguments()],
            "env": self._environment(),
            "resources": {"requests": resources, "limits": {"memory": options.memory}},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [{"name": volume["name"], "mountPath": path} for path, volume in self._mounts().items()],
        }

    def _arguments(self) -> list[str]:
        found = ["pipeline", "run", f"{_FILES}/{self._file_key}", "--master", self._options.master]
        if self._declared.is_checkpoint_local:
            found += ["--checkpoint", f"{_STATE}/checkpoints/{self._declared.pipeline.name}"]
        for name, value in self._settings().items():
            found += ["--conf", f"{name}={value}"]
        return found

    def _settings(self) -> dict[str, str]:
        options = self._options
        if not self._is_cluster:
            return dict(options.conf)
        return {
            "spark.driver.host": f"{self._name}.{options.namespace}.svc",
            "spark.driver.bindAddress": "0.0.0.0",
            "spark.driver.port": str(_DRIVER_PORT),
            "spark.blockManager.port": str(_BLOCK_PORT),
            "spark.executor.instances": str(options.executors),
            "spark.kubernetes.namespace": options.namespace,
            "spark.kubernetes.container.image": options.image,
            "spark.kubernetes.authenticate.driver.serviceAccountName": self._name,
            # Executors are deleted with the pod of their driver.
            "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
            "spark.pyspark.python": options.python,
            **{f"spark.kubernetes.executor.secretKeyRef.{name}": f"{self._secret}:{name}" for name in self._variables},
            **self._executor_context(),
            **options.conf,
        }

    def _environment(self) -> list[Manifest]:
        options = self._options
        found: list[Manifest] = [
            {"name": "PYSPARK_PYTHON", "value": options.python},
            # Java and Spark write below it. The user of the container may have no home folder.
            {"name": "HOME", "value": "/tmp"},
        ]
        if self._is_cluster:
            found.append({"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})
        if options.url:
            found.append({"name": "ONCEMQ_URL", "value": options.url})
        if self._context:
            found.append({"name": "ONCEMQ_CONTEXTS", "value": f"{_CONTEXT}/{CONTEXTS_FILE}"})
        if options.context:
            found.append({"name": "ONCEMQ_CONTEXT", "value": options.context})
        for name in self._variables:
            found.append({"name": name, "valueFrom": {"secretKeyRef": {"name": self._secret, "key": name}}})
        return found

    def _executor_context(self) -> dict[str, str]:
        """The settings by which executors find the context."""
        if not self._context:
            return {}
        return {
            f"spark.kubernetes.executor.secrets.{self._options.context_secret}": _CONTEXT,
            "spark.executorEnv.ONCEMQ_CONTEXTS": f"{_CONTEXT}/{CONTEXTS_FILE}",
        }

    def _mounts(self) -> dict[str, Manifest]:
        """The volumes by the paths at which they are mounted."""
        paths = {self._file_key: self._file_key} | {key: name for name, key in self._attachment_keys.items()}
        items = [{"key": key, "path": path} for key, path in paths.items()]
        found: dict[str, Manifest] = {
            _FILES: {"name": "pipeline", "configMap": {"name": self._name, "items": items}},
            "/tmp": {"name": "scratch", "emptyDir": {}},
        }
        if self._needs_volume:
            claim = self._options.claim or self._name
            found[_STATE] = {"name": "state", "persistentVolumeClaim": {"claimName": claim}}
        if self._context:
            secret = {"secretName": self._options.context_secret, "defaultMode": _SECRET_MODE}
            found[_CONTEXT] = {"name": "context", "secret": secret}
        return found


def _key(name: str) -> str:
    """A key that a ConfigMap accepts."""
    return re.sub(r"[^-._a-zA-Z0-9]", "_", name)


def _dumper() -> Any:
    """Writes texts of several lines as blocks, and repeats what occurs twice, because Kubernetes users expect both."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
            return True

    def represent(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, represent)
    return Dumper
