"""The schemas of archived topics: stored beside the messages, and put back before these are restored.

A version of a schema never changes, so a file with more versions replaces one with fewer. It is written when a run
starts, and after each micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import quote

import msgspec

from oncemq.client.internal import internal_api
from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.commands import PutSchema
from oncemq.protocol.patterns import matches
from oncemq.protocol.replies import SchemaReply
from oncemq.protocol.schema import RULES, SchemaVersion, decode_schema, encode_schema, fingerprint
from oncemq.spark.broker import Broker
from oncemq.spark.lake.layout import archive_root
from oncemq.spark.pipeline.model import Source
from oncemq.spark.pipeline.progress import Batch, Reporter, Summary
from oncemq.spark.targets.files.disk import Disk
from oncemq.spark.targets.files.folder import LocalFolder
from oncemq.spark.targets.objects.object_folder import ObjectFolder
from oncemq.spark.targets.open_folder import open_folder

_FOLDER = "_schemas"


class StoredVersion(msgspec.Struct, frozen=True):
    version: int
    time_ms: int
    #: As `encode_schema` writes it.
    schema: bytes


class StoredSchema(msgspec.Struct, frozen=True):
    """The schema of a topic, as it was when it was archived."""

    topic: str
    topic_id: int
    compatibility: str
    check: str
    versions: tuple[StoredVersion, ...]


class SchemaKeeper:
    """Stores the schemas of the topics that a run archives. It is also the run's reporter."""

    def __init__(self, folder: str, source: Source, broker: Broker, reporter: Reporter) -> None:
        self._folder = folder
        self._source = source
        self._broker = broker
        self._reporter = reporter
        #: Versions that are stored, by topic id.
        self._stored: dict[int, int] = {}

    def begin(self, name: str) -> None:
        self._save()
        self._reporter.begin(name)

    def batch(self, batch: Batch) -> None:
        self._save()
        self._reporter.batch(batch)

    def notice(self, text: str) -> None:
        self._reporter.notice(text)

    def end(self, summary: Summary | None) -> None:
        self._reporter.end(summary)

    def _save(self) -> None:
        try:
            with self._broker.connect(label="archive", record="") as client:
                for info in client.topics():
                    if info.schema_version > self._stored.get(info.topic_id, 0) and self._is_read(info.name):
                        # A topic may be deleted meanwhile.
                        with suppress(errors.TopicUnknown):
                            self._save_topic(client, info.name)
        except errors.BrokerAway as error:
            # The run itself waits for the broker.
            self._reporter.notice(f"the schemas could not be stored yet: {error.text}")

    def _is_read(self, topic: str) -> bool:
        source = self._source
        return matches(source.pattern.split("."), topic) if source.pattern else topic in source.names

    def _save_topic(self, client: Client, topic: str) -> None:
        found = client.schema(topic)
        if found is None:
            return
        versions = tuple(
            StoredVersion(each.version, each.time_ms, encode_schema(each.schema)) for each in found.versions
        )
        stored = StoredSchema(topic, found.topic_id, found.compatibility, found.check, versions)
        _folder(self._folder).update(_path(topic, found.topic_id), lambda before: _newer(before, stored))
        self._stored[found.topic_id] = found.newest.version


def _newer(before: bytes | None, stored: StoredSchema) -> bytes:
    """What remains of two files for a topic. Another run of the archive may have written the first one."""
    if before is not None and len(msgspec.json.decode(before, type=StoredSchema).versions) > len(stored.versions):
        return before
    return msgspec.json.encode(stored)


def _path(topic: str, topic_id: int) -> str:
    return f"{_FOLDER}/{quote(topic, safe='')}/{topic_id}.json"


def _folder(folder: str) -> LocalFolder | ObjectFolder:
    return open_folder(archive_root(folder), {}, Disk())


def restore_schema(client: Client, folder: str, source: str, topic_ids: Sequence[int], target: str) -> None:
    """Put the schema of an archived topic, with all its versions, into the topic that its messages are restored to.

    Raises PipelineInvalid if that topic has other versions, or if the archived topics of this name had."""
    found = [_folder(folder).read(_path(source, topic_id)) for topic_id in topic_ids]
    schemas = [msgspec.json.decode(raw, type=StoredSchema) for raw in found if raw is not None]
    if not schemas:
        return
    longest = max(schemas, key=lambda each: len(each.versions))
    for each in schemas:
        _refuse_difference(_prints(each), _prints(longest), f"the former topics '{source}' of the archive have")
    known = client.schema(target)
    versions = known.versions if known is not None else ()
    _refuse_difference([fingerprint(each.schema) for each in versions], _prints(longest), f"topic '{target}' has")
    _put(client, target, versions, longest)


def _prints(stored: StoredSchema) -> list[str]:
    return [fingerprint(decode_schema(each.schema)) for each in stored.versions]


def _refuse_difference(found: Sequence[str], wanted: Sequence[str], whose: str) -> None:
    for number, (one, other) in enumerate(zip(found, wanted, strict=False), 1):
        if one != other:
            raise errors.PipelineInvalid(
                f"{whose} another version {number} of the schema than the archive; restore into another topic"
            )


def _put(client: Client, target: str, known: Sequence[SchemaVersion], stored: StoredSchema) -> None:
    call = internal_api(client).call
    for version in stored.versions[len(known) :]:
        # What was compatible when it was put need not be compatible with all versions under today's rule.
        put = PutSchema(target, decode_schema(version.schema), RULES[0], "")
        reply = call(put, SchemaReply)
        if reply.version != version.version:
            raise errors.PipelineInvalid(f"version {version.version} of the schema became version {reply.version}")
    if len(known) < len(stored.versions):
        call(PutSchema(target, None, stored.compatibility, stored.check), SchemaReply)
