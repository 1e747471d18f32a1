"""The audit: proves from the records of clients (client/recording/) that each subscription was given every message
once and in order, or lists what was lost, doubled, out of order or changed. `oncemq pipeline audit`; docs/audit.md.

    lines       record files → rows
    puts        where each message is stored
    periods     a subscription's owners, and the seeks between them
    deliveries  what each subscription was given, and what the broker said of its position
    judging     each message's verdict
    auditing    the whole, as a Report (report.py)
"""

from __future__ import annotations

from oncemq.spark.audit.auditor import audit as audit
from oncemq.spark.audit.report import Finding as Finding
from oncemq.spark.audit.report import Report as Report
from oncemq.spark.audit.report import SubscriptionResult as SubscriptionResult
from oncemq.spark.audit.report import TopicResult as TopicResult

__all__ = ["Finding", "Report", "SubscriptionResult", "TopicResult", "audit"]
