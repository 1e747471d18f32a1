"""Packages that only some definitions and encodings need."""

from __future__ import annotations

import importlib
from typing import Any, Final

from oncemq.protocol import errors
from oncemq.protocol.schema.model import Encoding

#: Module → the extra that installs it.
_EXTRAS: Final = {"fastavro": "avro", "google.protobuf": "protobuf", "grpc_tools": "protobuf", "pyarrow": "arrow"}
_OF_ENCODING: Final[dict[Encoding, str]] = {"avro": "fastavro", "protobuf": "google.protobuf"}


def require(module: str, what: str) -> Any:
    """Import a module of an optional package. Raises MissingExtra, with the pip command."""
    package = module if module in _EXTRAS else module.rpartition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError:
        extra = next(extra for name, extra in _EXTRAS.items() if package.startswith(name))
        raise errors.MissingExtra(f"{what} needs a package: pip install 'oncemq[{extra}]'") from None


def missing_for(encoding: Encoding) -> str:
    """Return the extra that has to be installed to decode values of an encoding; "" = none."""
    module = _OF_ENCODING.get(encoding)
    if module is None:
        return ""
    try:
        importlib.import_module(module)
    except ImportError:
        return _EXTRAS[module]
    return ""
