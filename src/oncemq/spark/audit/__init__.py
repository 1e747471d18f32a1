"""The audit: proves from the records of clients (client/recording/) that each subscription received every message once
and in order, or lists what was lost, duplicated, out of order or changed. See `oncemq pipeline audit`, docs/audit.md.

    record_lines   record files → rows
    periods        the owners of a subscription, and the seeks between them
    positions      what the broker reports
    queries/       the SQL queries: puts, deliveries, messages and findings
    auditor        runs the queries, and builds the report
    report         the report
"""

from __future__ import annotations

from oncemq.spark.audit.auditor import audit as audit
from oncemq.spark.audit.report import Finding as Finding
from oncemq.spark.audit.report import Report as Report
from oncemq.spark.audit.report import SubscriptionResult as SubscriptionResult
from oncemq.spark.audit.report import TopicResult as TopicResult

__all__ = ["Finding", "Report", "SubscriptionResult", "TopicResult", "audit"]
