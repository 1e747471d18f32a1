"""Loads a function by its name `module:function`, and checks that it takes one argument."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_REFERENCE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")


class FunctionError(Exception):
    """The function can't be used."""

    def __init__(self, text: str, advice: str) -> None:
        super().__init__(text)
        self.text, self.advice = text, advice


def load_function(reference: str, folder: str) -> Callable[[Any], Any]:
    """Import the module, from `folder` or from Python's path, and return the function. Raises FunctionError."""
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise FunctionError(f"{reference!r} is not the name of a function", "write it as module:function")
    module = load_module(match[1], folder)
    found: Any = module
    for name in match[2].split("."):
        if not hasattr(found, name):
            public = [other for other in vars(module) if callable(getattr(module, other)) and not other.startswith("_")]
            advice = f"it has {', '.join(sorted(public)[:10])}" if public else "define it there"
            raise FunctionError(f"the module {match[1]} has no {match[2]!r}", advice)
        found = getattr(found, name)
    _check_callable(found, reference)
    return found  # type: ignore[no-any-return]


def load_module(name: str, folder: str) -> ModuleType:
    """Raises FunctionError."""
    try:
        with _module_path(folder, name):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            advice = f"put {name.replace('.', '/')}.py into the folder of the file, or install it"
            raise FunctionError(f"there is no module {name!r}", advice) from None
        raise FunctionError(f"the module {name} needs {error.name!r}", f"install {error.name}") from None
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split()).strip(": ")
        raise FunctionError(f"the module {name} can't be imported: {reason}", "correct the module") from None


@contextmanager
def _module_path(folder: str, name: str) -> Iterator[None]:
    """Look in `folder` first, even if a module of the same name was imported from another folder before."""
    folder = os.path.abspath(folder)
    top = name.partition(".")[0]
    ours = [os.path.join(folder, end) for end in (f"{top}.py", os.path.join(top, "__init__.py"))]
    loaded = getattr(sys.modules.get(top), "__file__", None)
    if loaded not in ours and any(os.path.exists(path) for path in ours):
        for other in [other for other in sys.modules if other == top or other.startswith(top + ".")]:
            del sys.modules[other]
    importlib.invalidate_caches()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _check_callable(found: Any, reference: str) -> None:
    if not callable(found):
        raise FunctionError(f"{reference} is not a function", "define it with `def`, from a DataFrame to a DataFrame")
    try:
        inspect.signature(found).bind(None)
    except TypeError:
        advice = "it must take one DataFrame and return one"
        raise FunctionError(f"{reference} can't be called with one argument", advice) from None
    except ValueError:
        # Functions in C may have no signature.
        return
