"""URLs of folders in object stores, and the settings to reach them. Imports neither Spark nor the package for stores.

The settings come from the variables that each cloud's own tools read, such as AWS_ACCESS_KEY_ID. A target can name
other variables. It contains their names only, so that no secret is in Spark's plans, logs or checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from oncemq.protocol import errors

#: Hadoop's and the clouds' own names of schemes.
SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
_ENDPOINTS = ("endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url")


def is_object_url(path: str) -> bool:
    """
    >>> is_object_url("s3a://lake/orders"), is_object_url("/lake/orders")
    (True, False)
    """
    return path.partition("://")[0] in SCHEMES and "://" in path


def normalized(url: str) -> str:
    """
    >>> normalized("s3a://lake/orders/")
    's3://lake/orders'
    """
    scheme, _, rest = url.partition("://")
    return f"{'s3' if scheme == 's3a' else scheme}://{rest.rstrip('/')}"


def encode_storage(storage: Mapping[str, str]) -> str:
    """The option `storage` of the sinks."""
    return msgspec.json.encode(dict(storage)).decode()


def decode_storage(options: Mapping[str, str]) -> dict[str, str]:
    return msgspec.json.decode(options.get("storage", "{}"), type=dict[str, str])


def resolve_settings(storage: Mapping[str, str]) -> dict[str, str]:
    """The settings of a store, given the names of the variables that contain them. Raises SettingInvalid."""
    settings = {}
    for name, variable in storage.items():
        value = os.environ.get(variable)
        if value is None:
            raise errors.SettingInvalid(
                f"the environment variable {variable}, which `storage.{name}` of the target names, is not set here"
            )
        settings[name.lower()] = value
    endpoint = next((settings[name] for name in _ENDPOINTS if name in settings), "")
    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL", "") or os.environ.get("AWS_ENDPOINT", "")
    if endpoint.startswith("http://"):
        settings["allow_http"] = "true"
    return settings
