"""How an archive lies in its folder. Knows names, and nothing of what is in the files.

    DIR/topic=NAME/date=DAY/….parquet     the messages; NAME is percent-encoded, DAY is that of the time stamp, in UTC
    DIR/_delta_log/                       where it is a Delta table
    DIR/_oncemq/                          where it is Parquet: what is being published (targets/files/commit_log.py)
    DIR/_checkpoints/SUBSCRIPTION/        how far the archive is; without it, it would begin again

Readers don't look into folders that begin with an underscore.
"""

from __future__ import annotations

import os
import uuid
from typing import Literal
from urllib.parse import quote, unquote

from oncemq.protocol import errors
from oncemq.spark.targets.files.file_writer import local_path

Format = Literal["parquet", "delta"]
FORMATS: tuple[Format, ...] = ("parquet", "delta")
PARTITION_BY = ("topic", "date")
#: Of a message, in this order; the partition columns are in the folders' names.
COLUMNS = ("topic", "topic_id", "offset", "key", "value", "headers", "timestamp", "idempotency_key", "date")

#: What file systems allow.
FOLDER_BYTES_MAX = 255
#: What readers take for "no value".
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_CHECKPOINTS = "_checkpoints"


def topic_folder(topic: str) -> str:
    """
    >>> topic_folder("orders of 2026/eu")
    'topic=orders%20of%202026%2Feu'
    """
    return f"topic={quote(topic, safe='')}"


def topic_of(folder: str) -> str:
    """
    >>> topic_of("topic=orders%20of%202026%2Feu")
    'orders of 2026/eu'
    """
    return unquote(folder.removeprefix("topic="), errors="strict")


def refuse_topic(topic: str) -> None:
    """Raises PipelineInvalid for a topic that no folder can be named after."""
    if len(topic_folder(topic)) > FOLDER_BYTES_MAX:
        raise errors.PipelineInvalid(f"topic '{topic}': its name, percent-encoded, is too long for a folder's")
    if topic == NULL_FOLDER:
        raise errors.PipelineInvalid(f"topic '{topic}': readers take a folder of this name for one without a topic")


def format_of(root: str) -> Format | None:
    """What is archived there; None = nothing yet."""
    if os.path.isdir(os.path.join(root, "_delta_log")):
        return "delta"
    if not os.path.isdir(root):
        return None
    has_topics = any(name.startswith("topic=") for name in os.listdir(root))
    return "parquet" if has_topics or os.path.isdir(os.path.join(root, "_oncemq")) else None


def chosen_format(folder: str, wanted: str) -> Format:
    """What is asked for, or what the folder holds. Raises PipelineInvalid where the two differ."""
    if wanted and wanted not in FORMATS:
        raise errors.PipelineInvalid(f"{wanted!r} is no format of archives: {' or '.join(FORMATS)}")
    found = format_of(local_path(folder))
    if wanted and found and wanted != found:
        raise errors.PipelineInvalid(f"{folder} is an archive in {found}, not in {wanted}; choose another folder")
    return next((kind for kind in FORMATS if kind == wanted), found or FORMATS[0])


def names_of(folder: str, subscription: str, checkpoint: str) -> tuple[str, str]:
    """The archive's subscription and its checkpoint, which belong together for ever.

    A name that nobody gives is made once, and found again in the folder: another archive of the same topics has
    another one, so that neither acks what the other has not archived.
    """
    if checkpoint and not subscription:
        raise errors.PipelineInvalid("a checkpoint of your own needs the name of the subscription that goes with it")
    checkpoints = os.path.join(local_path(folder), _CHECKPOINTS)
    subscription = subscription or _known(checkpoints) or f"archive-{uuid.uuid4().hex[:8]}"
    if not checkpoint:
        return subscription, os.path.join(checkpoints, quote(subscription, safe=""))
    return subscription, checkpoint if "://" in checkpoint else os.path.abspath(checkpoint)


def _known(checkpoints: str) -> str:
    """The one subscription that has archived here; "" = none has."""
    found = sorted(unquote(name) for name in os.listdir(checkpoints)) if os.path.isdir(checkpoints) else []
    if len(found) > 1:
        raise errors.PipelineInvalid(f"{checkpoints} knows several subscriptions; say which: {', '.join(found)}")
    return found[0] if found else ""
