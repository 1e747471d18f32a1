"""Exceptions under their public names."""

from __future__ import annotations

import pickle

import pytest

import oncemq
from oncemq.protocol import errors


@pytest.mark.parametrize("kind", errors.BY_CODE.values(), ids=list(errors.BY_CODE))
def test_an_exception_is_named_after_the_public_module(kind: type[errors.OnceMQError]) -> None:
    assert getattr(oncemq, kind.__name__) is getattr(oncemq.errors, kind.__name__) is kind
    assert kind.__module__ == "oncemq.errors"
    copy = pickle.loads(pickle.dumps(kind("it happened")))
    assert (type(copy), copy.text) == (kind, "it happened")
