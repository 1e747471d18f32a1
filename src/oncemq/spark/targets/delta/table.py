"""One transaction per batch on a Delta table, with the package `deltalake`.

The transaction contains the query's id and the batch's number as an application transaction of the Delta protocol. If
two transactions of one query run at the same time, the log accepts one. The other one is tried again, and then finds
that its batch is in the table. A second application transaction, `QUERY/content`, has a part of the digest of the
batch's content as its version. If the table deletes such numbers (`delta.setTransactionRetentionDuration`), the batches
of a query that pauses for longer are forgotten.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyspark.sql.types import StructField, StructType

from oncemq.protocol import errors
from oncemq.spark.checkpoint.content import refuse_other_content
from oncemq.spark.targets.columns import added_columns, nullable
from oncemq.spark.targets.files.disk import Disk
from oncemq.spark.targets.files.file_writer import DataFile

#: An attempt fails if another writer commits first.
_ATTEMPTS = 10
_KINDS = {"string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary", "date"}
_KINDS |= {"timestamp", "timestamp_ntz"}
#: Features that a writer must implement, and that this one does not implement.
_REFUSED_PROPERTIES = ("delta.constraints.", "delta.columnMapping.mode")
_REFUSED_METADATA = ("delta.invariants", "delta.generationExpression", "delta.identity.start")


def open_table(root: str, storage: Mapping[str, str] | None = None) -> Any:
    """Return None if there is no table. `storage` has the settings of an object store."""
    try:
        return DeltaTable(root, storage_options=dict(storage or {}))
    except TableNotFoundError:
        return None


class Table:
    """A table in a local folder, or in an object store with the settings `storage`. There, deltalake creates an entry
    of the log with a conditional put. If its reply is lost, the next attempt finds the batch in the table."""

    def __init__(
        self,
        root: str,
        schema: StructType,
        partition_by: Sequence[str],
        disk: Disk,
        storage: Mapping[str, str] | None = None,
    ) -> None:
        self._root = root
        self._storage = dict(storage or {})
        self._is_local = "://" not in root
        self._schema = nullable(schema)
        self._partition_by = list(partition_by)
        self._disk = disk

    def open(self) -> Any:
        """Return None if there is no table."""
        return open_table(self._root, self._storage)

    def add(self, query_id: str, batch_id: int, files: Sequence[DataFile], content: bytes) -> bool:
        """Add the files in one transaction, which is durable when this returns. Returns False if the batch was in the
        table already. Raises BatchChanged if it was there with other content, and OnceMQError if other writers always
        commit first."""
        actions = [_action(file) for file in files]
        for _ in range(_ATTEMPTS):
            table = self.open()
            if table is not None and (last := last_batch(table, query_id)) >= batch_id:
                is_same = _is_same(table, query_id, content, is_last=last == batch_id)
                refuse_other_content(self._root, batch_id, last, is_same=is_same)
                self._sync_log(after=-1)
                return False
            before = -1 if table is None else table.version()
            failure = self._try(table, _transactions(query_id, batch_id, content), actions)
            if failure is None:
                self._sync_log(after=before)
                return True
        raise self._failed(failure)

    def _failed(self, why: Exception | None) -> errors.OnceMQError:
        return errors.OnceMQError(f"the transaction on the Delta table {self._root} failed: {why}; start again")

    def _try(self, table: Any, transactions: list[Any], actions: list[Any]) -> Exception | None:
        # A retry inside deltalake would not check whether another driver has committed the batch.
        properties = CommitProperties(app_transactions=transactions, max_commit_retries=0)
        try:
            if table is None:
                self._create(actions, properties)
            else:
                self.check(table)
                self._append(table, actions, properties)
        except CommitFailedError as error:
            return error
        except DeltaError as error:
            if table is None and self.open() is not None:
                return error
            raise
        return None

    def _create(self, actions: list[Any], properties: Any) -> None:
        create_table_with_add_actions(
            self._root,
            self._delta_schema(),
            actions,
            mode="error",
            storage_options=self._storage,
            partition_by=self._partition_by,
            commit_properties=properties,
        )

    def _append(self, table: Any, actions: list[Any], properties: Any) -> None:
        if actions:
            table.create_write_transaction(
                actions, "append", self._delta_schema(), self._partition_by, commit_properties=properties
            )

    def _delta_schema(self) -> Any:
        return Schema.from_json(self._schema.json())

    def file_names(self) -> str:
        """All files of the table, in one string."""
        table = self.open()
        return "" if table is None else "\n".join(table.file_uris())

    def add_columns(self) -> None:
        """Add the columns that the table does not have, in a transaction of their own: deltalake can't add files and
        columns in one. Raises SettingInvalid if the rows can't be appended."""
        for _ in range(_ATTEMPTS):
            table = self.open()
            added = self.check(table, evolve=True)
            if not added:
                return
            before = table.version()
            fields = [Field.from_json(json.dumps(field.jsonValue())) for field in added]
            try:
                table.alter.add_columns(fields, commit_properties=CommitProperties(max_commit_retries=0))
            except CommitFailedError as error:
                failure = error
                continue
            self._sync_log(after=before)
            return
        raise self._failed(failure)

    def check(self, table: Any, *, evolve: bool = False) -> list[StructField]:
        """Check that the rows can be appended to the table, if there is one. Returns the columns that must be added to
        it, which is allowed with `evolve`. Raises SettingInvalid."""
        for field in self._schema.fields:
            _check_type(field.name, field.dataType.jsonValue())
        if table is None:
            return []
        known = json.loads(table.schema().to_json())
        added = added_columns(StructType.fromJson(known), self._schema, f"the Delta table {self._root}", evolve=evolve)
        self._check_table(table, known["fields"])
        return added

    def _check_table(self, table: Any, fields: Sequence[dict[str, Any]]) -> None:
        for field in fields:
            self._check_field(field)
        found = table.metadata().partition_columns
        if found != self._partition_by:
            raise self._mismatch(f"it is partitioned by {found}, not by {self._partition_by}")
        for name, value in table.metadata().configuration.items():
            if name.startswith(_REFUSED_PROPERTIES) and value != "none":
                raise self._mismatch(f"its property {name} is {value!r}, which this sink does not support")

    def _check_field(self, field: dict[str, Any]) -> None:
        if not field["nullable"]:
            raise self._mismatch(f"its column {field['name']!r} is not nullable, but the columns of a stream are")
        for name in _REFUSED_METADATA:
            if name in field["metadata"]:
                raise self._mismatch(f"its column {field['name']!r} has {name}, which this sink does not support")

    def _mismatch(self, why: str) -> errors.SettingInvalid:
        return errors.SettingInvalid(f"the rows can't be appended to the Delta table {self._root}: {why}")

    def _sync_log(self, *, after: int) -> None:
        """Sync the log entries after that version, which deltalake does not do. An object store does."""
        if not self._is_local:
            return
        log = os.path.join(self._root, "_delta_log")
        for name in os.listdir(log):
            version = name.partition(".")[0]
            if name == "_last_checkpoint" or (version.isdigit() and int(version) > after):
                # Another writer may delete old entries.
                with suppress(FileNotFoundError):
                    self._disk.sync_file(os.path.join(log, name))
        self._disk.sync_folder(log)
        self._disk.sync_folder(self._root)


def last_batch(table: Any, query_id: str) -> int:
    """The last batch of a query; -1 = none."""
    version = table.transaction_version(query_id)
    return -1 if version is None else int(version)


def content_id(query_id: str) -> str:
    """The application id whose version is a part of the content's digest."""
    return f"{query_id}/content"


def content_version(content: bytes) -> int:
    """A version is a number of 63 bits; 0 = the content is not known."""
    return int.from_bytes(content[:8]) >> 1


def _transactions(query_id: str, batch_id: int, content: bytes) -> list[Any]:
    now_ms = int(time.time() * 1000)
    # Also if the content is not known: otherwise that of an earlier batch would remain.
    versions = {query_id: batch_id, content_id(query_id): content_version(content)}
    return [Transaction(name, version, now_ms) for name, version in versions.items()]


def _is_same(table: Any, query_id: str, content: bytes, *, is_last: bool) -> bool:
    """Whether the last batch of the query is this one, as far as its content is known."""
    version = table.transaction_version(content_id(query_id))
    return not content or not version or (is_last and int(version) == content_version(content))


def _check_type(name: str, kind: Any) -> None:
    """Also checks the types inside arrays, maps and structs. Raises SettingInvalid."""
    if isinstance(kind, dict):
        inner = [kind[each] for each in ("elementType", "keyType", "valueType") if each in kind]
        for each in inner + [field["type"] for field in kind.get("fields", ())]:
            _check_type(name, each)
    elif kind not in _KINDS and not kind.startswith("decimal("):
        raise errors.SettingInvalid(f"the column {name!r} has the type {kind}, which Delta tables do not support")


def _action(file: DataFile) -> Any:
    modified_ms = int(time.time() * 1000)
    return AddAction(file.path, file.size_bytes, file.values, modified_ms, True, file.statistics)
