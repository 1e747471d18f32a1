"""Archives topics as Parquet files or a Delta table, and restores topics from an archive, each message once.

    from oncemq.spark.lake import archive, restore

    archive("/lake/orders", topic="orders", ack_last=True)
    restore("/lake/orders", to="orders-again", create=True)

On the command line: `oncemq pipeline archive` and `restore`. A JVM is started only if there is something to do.
"""

from __future__ import annotations

from oncemq.spark.lake.archiver import archive
from oncemq.spark.lake.restorer import Restored, restore

__all__ = ["Restored", "archive", "restore"]
