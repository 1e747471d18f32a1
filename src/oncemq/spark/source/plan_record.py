"""The plan of the last micro-batch, in the broker's registry.

Spark writes where a micro-batch ends to its checkpoint, without a sync. If that entry is lost after a target has
committed the micro-batch, Spark plans it again, with the messages that have arrived meanwhile, under the same number.
The source records the plan in the broker before tasks read. If the query resumes at the recorded start, the micro-batch
ends where it ended before, and the target recognises it.

The record has a version. A driver that has lost its subscription to another one can't replace the other one's record.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.limits import REGISTRY_VALUE_BYTES_MAX
from oncemq.spark.checkpoint.content import digest
from oncemq.spark.checkpoint.location import CheckpointFiles

_log = logging.getLogger(__name__)

_NAMESPACE = "spark-plans"


class Plan(msgspec.Struct, frozen=True):
    """A micro-batch of one source."""

    #: A digest of the offsets at which it starts.
    start: bytes
    #: The offsets at which it ends, as in Spark's checkpoint.
    end: dict[str, Any]
    #: The id of the query; "" = it is not known.
    query: str = ""


class PlanRecord:
    """The record of one subscription."""

    def __init__(self, client: Client, subscriber: str, selection: object, checkpoint: str) -> None:
        self._client = client
        # Queries on other topics may use the same name for their subscriptions.
        self._key = f"{subscriber}/{digest(selection).hex()}"
        self._checkpoint = checkpoint
        self._version = 0
        self._plan: Plan | None = None
        self._query: str | None = None
        self.load()

    def load(self) -> None:
        """Read the record."""
        found = next((entry for entry in self._client.registry_list(_NAMESPACE, self._key)), None)
        self._version = found.version if found is not None else 0
        self._plan = _decode(found.value) if found is not None else None

    def end_after(self, start: Mapping[str, Any]) -> dict[str, Any] | None:
        """Where the recorded micro-batch ends, if it starts here."""
        return self._plan.end if self._plan is not None and self._plan.start == digest(start) else None

    def refuse_other_query(self) -> None:
        """Refuse to continue a checkpoint whose query has got another id: targets would take a replayed micro-batch for
        a new one. Raises CheckpointBehind."""
        query = self._query_id()
        if self._plan is not None and self._plan.query and query and self._plan.query != query:
            raise errors.CheckpointBehind(
                f"the query of the checkpoint {self._checkpoint} had the id {self._plan.query} and now has the id "
                f"{query}: its file 'metadata' was lost, or it is the checkpoint of another query. Restore that file, "
                "or start with a new checkpoint"
            )

    def store(self, start: Mapping[str, Any], end: Mapping[str, Any], ensure_owner: Callable[[], None]) -> None:
        """Record a micro-batch durably. `ensure_owner` raises an error if another driver has taken over."""
        plan = Plan(digest(start), dict(end), self._query_id())
        if plan == self._plan:
            return
        value = zlib.compress(msgspec.json.encode(plan), 1)
        if len(value) > REGISTRY_VALUE_BYTES_MAX:
            # There are too many topics for a record. Targets still recognise a micro-batch with other content.
            _log.info("the plan of '%s' is too large to be recorded", self._key)
            self._set(None, ensure_owner)
        else:
            self._set(value, ensure_owner)
        self._plan = plan

    def _set(self, value: bytes | None, ensure_owner: Callable[[], None]) -> None:
        try:
            try:
                self._version = self._client.registry_set(_NAMESPACE, self._key, value, version=self._version)
            except errors.RegistryConflict:
                ensure_owner()
                # The former owner was late.
                self.load()
                self._version = self._client.registry_set(_NAMESPACE, self._key, value, version=self._version)
        except errors.LimitReached as error:
            _log.warning("the plan of a micro-batch is not recorded: %s", error)

    def _query_id(self) -> str:
        if self._query is None:
            self._query = CheckpointFiles(self._checkpoint).query_id()
        return self._query


def _decode(value: bytes) -> Plan | None:
    try:
        return msgspec.json.decode(zlib.decompress(value), type=Plan)
    except (zlib.error, msgspec.MsgspecError):
        # Another version of OnceMQ wrote it.
        return None
