"""Opens the folder of a target, on a local or mounted disk or in an object store."""

from __future__ import annotations

from collections.abc import Mapping

from oncemq.spark.targets.files.disk import Disk
from oncemq.spark.targets.files.file_writer import local_path
from oncemq.spark.targets.files.folder import LocalFolder
from oncemq.spark.targets.objects.location import is_object_url
from oncemq.spark.targets.objects.object_folder import ObjectFolder


def open_folder(path: str, storage: Mapping[str, str], disk: Disk) -> LocalFolder | ObjectFolder:
    """Raises SettingInvalid for a URL that is neither."""
    return ObjectFolder(path, storage) if is_object_url(path) else LocalFolder(local_path(path), disk)
