"""The layout of an archive's folder. This module knows names, and not the content of the files.

    DIR/topic=NAME/date=DAY/….parquet     the messages; NAME is percent-encoded, DAY is the day of the time stamp in UTC
    DIR/_delta_log/                       in a Delta table
    DIR/_oncemq/                          in a Parquet archive: commits in progress (targets/files/commit_log.py)
    DIR/_schemas/NAME/ID.json             the schema of the topic with this name and id, with all versions
    DIR/_checkpoints/SUBSCRIPTION/        the progress of the archive; without it, archiving would start from scratch

Readers ignore folders that begin with an underscore.
"""

from __future__ import annotations

import os
import uuid
from typing import Literal
from urllib.parse import quote, unquote

from oncemq.protocol import errors
from oncemq.spark.targets.files.file_writer import local_path
from oncemq.spark.targets.objects.location import is_object_url, normalized

Format = Literal["parquet", "delta"]
FORMATS: tuple[Format, ...] = ("parquet", "delta")
PARTITION_BY = ("topic", "date")
#: The columns of a message, in this order. The partition columns are in the names of the folders.
COLUMNS = (
    "topic",
    "topic_id",
    "offset",
    "key",
    "value",
    "headers",
    "timestamp",
    "idempotency_key",
    "schema_version",
    "date",
)

#: The limit of file systems.
FOLDER_BYTES_MAX = 255
#: Readers parse this name as null.
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_CHECKPOINTS = "_checkpoints"


def topic_folder(topic: str) -> str:
    """
    >>> topic_folder("orders of 2026/eu")
    'topic=orders%20of%202026%2Feu'
    """
    return f"topic={quote(topic, safe='')}"


def parse_topic_folder(folder: str) -> str:
    """
    >>> parse_topic_folder("topic=orders%20of%202026%2Feu")
    'orders of 2026/eu'
    """
    return unquote(folder.removeprefix("topic="), errors="strict")


def refuse_topic(topic: str) -> None:
    """Raises PipelineInvalid for a topic whose name can't be the name of a folder."""
    if len(topic_folder(topic)) > FOLDER_BYTES_MAX:
        raise errors.PipelineInvalid(f"topic '{topic}': its percent-encoded name is too long for a folder")
    if topic == NULL_FOLDER:
        raise errors.PipelineInvalid(f"topic '{topic}': readers would parse a folder of this name as null")


def archive_root(folder: str) -> str:
    """The absolute path of an archive, or its URL in an object store. Raises SettingInvalid for other URLs."""
    return normalized(folder) if is_object_url(folder) else local_path(folder)


def detect_format(root: str) -> Format | None:
    """The format of the archive in a folder; None = there is none yet."""
    if is_object_url(root):
        return _detect_remote_format(root)
    if os.path.isdir(os.path.join(root, "_delta_log")):
        return "delta"
    if not os.path.isdir(root):
        return None
    has_topics = any(name.startswith("topic=") for name in os.listdir(root))
    return "parquet" if has_topics or os.path.isdir(os.path.join(root, "_oncemq")) else None


def _detect_remote_format(root: str) -> Format | None:
    from oncemq.spark.targets.objects.object_folder import ObjectFolder

    folder = ObjectFolder(root, {})
    if next(folder.list("_delta_log/"), None) is not None:
        return "delta"
    has_topics = any(file.path.startswith(("topic=", "_oncemq/")) for file in folder.list())
    return "parquet" if has_topics else None


def choose_format(folder: str, wanted: str) -> Format:
    """The wanted format, or that of the folder. Raises PipelineInvalid if the two differ."""
    if wanted and wanted not in FORMATS:
        raise errors.PipelineInvalid(f"{wanted!r} is not a format of archives: use {' or '.join(FORMATS)}")
    found = detect_format(archive_root(folder))
    if wanted and found and wanted != found:
        raise errors.PipelineInvalid(
            f"the archive in {folder} has the format {found}, not {wanted}; choose another folder"
        )
    return next((kind for kind in FORMATS if kind == wanted), found or FORMATS[0])


def archive_names(folder: str, subscription: str, checkpoint: str) -> tuple[str, str]:
    """The subscription of the archive and its checkpoint, which always belong together. Raises PipelineInvalid.

    A name that is not given is generated once and stored in the folder. Another archive of the same topics has another
    name, so that neither acks messages that the other has not archived.
    """
    if checkpoint and not subscription:
        raise errors.PipelineInvalid("a checkpoint can only be chosen together with its subscription: give both")
    if is_object_url(folder) and not checkpoint:
        raise errors.PipelineInvalid(
            "an archive in an object store needs --subscription and --checkpoint: Spark stores its progress on a disk, "
            f"and not in {folder}"
        )
    checkpoints = os.path.join(archive_root(folder), _CHECKPOINTS)
    subscription = subscription or _known_subscription(checkpoints) or f"archive-{uuid.uuid4().hex[:8]}"
    if not checkpoint:
        return subscription, os.path.join(checkpoints, quote(subscription, safe=""))
    return subscription, checkpoint if "://" in checkpoint else os.path.abspath(checkpoint)


def _known_subscription(checkpoints: str) -> str:
    """The only subscription of this archive; "" = there is none yet."""
    found = sorted(unquote(name) for name in os.listdir(checkpoints)) if os.path.isdir(checkpoints) else []
    if len(found) > 1:
        raise errors.PipelineInvalid(f"{checkpoints} has several subscriptions; choose one: {', '.join(found)}")
    return found[0] if found else ""
