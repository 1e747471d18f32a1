"""The frames of one client: what `Client` documents. Arrow is imported with the first frame."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from oncemq.client.consumer.reader import Reader, Start
from oncemq.client.frames.schemas import require_arrow

if TYPE_CHECKING:
    from oncemq.client.context import ClientContext
    from oncemq.client.frames.reader import FrameReader
    from oncemq.client.producer.encoding import Headers
    from oncemq.client.producer.producer import Producer
    from oncemq.client.producer.receipt import Receipt
    from oncemq.client.runtime.flow import Flow


class Frames:
    """Puts and reads frames."""

    def __init__(self, context: ClientContext, producer: Producer[Any]) -> None:
        self._context = context
        self._producer = producer

    def put(
        self,
        topic: str,
        frame: Any,
        key: str | None,
        headers: Headers | None,
        ttl_s: float | None,
        delay_s: float | None,
        version: int,
    ) -> Flow[Receipt]:
        """Store the rows of a frame."""
        require_arrow()
        from oncemq.client.frames.writer import FrameOptions, put_frame

        options = FrameOptions(topic, frame, key, headers, ttl_s, delay_s, version)
        return put_frame(self._producer, self._context.frame_schemas, options)

    def reader(
        self,
        topic: str,
        start: Start | datetime | None,
        stop: int | None,
        follow: bool,
        version: int,
        columns: Sequence[str],
    ) -> FrameReader:
        """Return what reads a range in frames."""
        converter = self._context.frame_schemas.converter(version, columns)
        from oncemq.client.frames.reader import FrameReader

        return FrameReader(Reader(self._context.driver, topic, start, stop, follow, 0), converter)

    def concatenated(self, topic: str, tables: Sequence[Any], version: int, columns: Sequence[str]) -> Flow[Any]:
        """Return tables of one topic as one; without any, a table without rows."""
        converter = self._context.frame_schemas.converter(version, columns)
        return converter.concatenated(topic, tables)
