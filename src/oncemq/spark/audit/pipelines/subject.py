"""What an audit is about: a pipeline, and where it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from oncemq.spark.audit.pipelines.identity import Identity
from oncemq.spark.broker import Broker
from oncemq.spark.pipeline.model import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncemq.client.sync import Client


class Subject(msgspec.Struct, frozen=True):
    spark: SparkSession
    client: Client
    broker: Broker
    pipeline: Pipeline
    #: The folder of its file, for Python modules.
    folder: str
    #: The names of the columns that say from which message a row comes, if they are not the usual ones.
    wanted: Identity
