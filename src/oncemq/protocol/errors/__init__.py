"""Every exception of OnceMQ, and the table of stable codes.

    OnceMQError
    ├── Refused                      the broker refused: repeating the command repeats the answer
    │   ├── Malformed                MALFORMED
    │   ├── VersionUnsupported       VERSION_UNSUPPORTED
    │   ├── Unsupported              UNSUPPORTED
    │   ├── NameInvalid              NAME_INVALID
    │   ├── TooLarge                 TOO_LARGE
    │   ├── LimitReached             LIMIT_REACHED
    │   ├── Unauthenticated          UNAUTHENTICATED
    │   ├── Forbidden                FORBIDDEN
    │   ├── QuotaReached             QUOTA_REACHED
    │   ├── TopicUnknown             TOPIC_UNKNOWN
    │   ├── TopicExists              TOPIC_EXISTS
    │   ├── TopicGone                TOPIC_GONE
    │   ├── NotSubscribed            NOT_SUBSCRIBED
    │   ├── OffsetOutOfRange         OFFSET_OUT_OF_RANGE
    │   ├── RangeGone                RANGE_GONE
    │   ├── Fenced                   FENCED
    │   │   └── SubscriptionFenced   SUBSCRIPTION_FENCED
    │   ├── Sought                   SOUGHT
    │   ├── EarlierFailed            EARLIER_FAILED
    │   ├── LeaseLost                LEASE_LOST
    │   ├── SubscriptionExists       SUBSCRIPTION_EXISTS
    │   ├── SubscriptionExpired      SUBSCRIPTION_EXPIRED
    │   ├── KindMismatch             KIND_MISMATCH
    │   ├── SessionUnknown           SESSION_UNKNOWN
    │   ├── SequenceReused           SEQUENCE_REUSED
    │   ├── VerdictForgotten         VERDICT_FORGOTTEN
    │   ├── KeyReused                KEY_REUSED
    │   ├── StageUnknown             STAGE_UNKNOWN
    │   ├── StageMismatch            STAGE_MISMATCH
    │   ├── StageCommitted           STAGE_COMMITTED
    │   ├── BatchChanged             BATCH_CHANGED
    │   ├── RegistryConflict         REGISTRY_CONFLICT
    │   ├── SchemaInvalid            SCHEMA_INVALID
    │   ├── SchemaRequired           SCHEMA_REQUIRED
    │   ├── SchemaMismatch           SCHEMA_MISMATCH
    │   ├── SchemaIncompatible       SCHEMA_INCOMPATIBLE
    │   ├── SchemaUnknown            SCHEMA_UNKNOWN
    │   ├── BrokerBug                BROKER_BUG
    │   ├── ProducerUnknown          PRODUCER_UNKNOWN
    │   ├── ProducerRegistered       PRODUCER_REGISTERED
    │   ├── ProducerElsewhere        PRODUCER_ELSEWHERE
    │   ├── NotRegistered            NOT_REGISTERED
    │   ├── ConsumerUnknown          CONSUMER_UNKNOWN
    │   ├── ConsumerSubscribed       CONSUMER_SUBSCRIBED
    │   ├── NoConsumers              NO_CONSUMERS
    │   ├── Consumed                 CONSUMED
    │   ├── PathUnknown              PATH_UNKNOWN
    │   ├── MethodUnknown            METHOD_UNKNOWN
    │   ├── MediaUnsupported         MEDIA_UNSUPPORTED
    │   └── OriginRefused            ORIGIN_REFUSED
    ├── NotNow                       the broker decided nothing: the same command may succeed later
    │   ├── Gap                      GAP
    │   ├── WindowFull               WINDOW_FULL
    │   ├── Busy                     BUSY
    │   ├── DiskFull                 DISK_FULL
    │   ├── TopicFull                TOPIC_FULL
    │   ├── KeysFull                 KEYS_FULL
    │   ├── QuotaFull                QUOTA_FULL
    │   ├── RateLimited              RATE_LIMITED
    │   ├── Overloaded               OVERLOADED
    │   ├── Stopping                 STOPPING
    │   ├── Standby                  STANDBY
    │   └── DamagedInTransit         DAMAGED_IN_TRANSIT
    ├── BrokerAway                   BROKER_AWAY
    ├── TlsFailed                    TLS_FAILED
    ├── BrokerRewound                BROKER_REWOUND
    ├── NothingNew                   NOTHING_NEW
    ├── ClientClosed                 CLIENT_CLOSED
    ├── ForkedError                  FORKED
    ├── ListenFailed                 LISTEN_FAILED
    ├── SettingInvalid               SETTING_INVALID
    ├── MissingExtra                 MISSING_EXTRA
    ├── PipelineInvalid              PIPELINE_INVALID
    ├── PipelineFailed               PIPELINE_FAILED
    ├── CheckpointBehind             CHECKPOINT_BEHIND
    ├── InboxRewound                 INBOX_REWOUND
    ├── OutboxError                  OUTBOX
    │   ├── OutboxInvalid            OUTBOX_INVALID
    │   ├── OutboxVersion            OUTBOX_VERSION
    │   ├── OutboxFull               OUTBOX_FULL
    │   ├── OutboxForeign            OUTBOX_FOREIGN
    │   └── OutboxRewound            OUTBOX_REWOUND
    └── JournalError                 JOURNAL
        ├── JournalLocked            JOURNAL_LOCKED
        ├── JournalCorrupt           JOURNAL_CORRUPT
        ├── JournalFailed            JOURNAL_FAILED
        │   └── JournalFenced        JOURNAL_FENCED
        ├── JournalVersion           JOURNAL_VERSION
        └── RecordCorrupt            RECORD_CORRUPT
            └── Undecodable          UNDECODABLE

Two subclasses of `Refused` are fatal to the client: after `Fenced` and `SessionUnknown`, as after `BrokerAway`, the
outcome of commands in flight is unknown. The same is true if a client has lost its connection and is refused when it
connects again (`Unauthenticated`, `QuotaReached`, `TlsFailed`).

Every exception is also an attribute of `oncemq`. The docstring of an exception is its default message; `advice` says
what to do. Both are printed in docs/reference/errors.md, with the exit code of the command line and the HTTP status.
"""

from __future__ import annotations

from oncemq.protocol.errors.base import *  # noqa: F403
from oncemq.protocol.errors.base import NotNow, OnceMQError, Refused
from oncemq.protocol.errors.broker import *  # noqa: F403
from oncemq.protocol.errors.client import *  # noqa: F403
from oncemq.protocol.errors.client import BrokerAway
from oncemq.protocol.errors.gateway import *  # noqa: F403
from oncemq.protocol.errors.not_now import *  # noqa: F403
from oncemq.protocol.errors.schema import *  # noqa: F403
from oncemq.protocol.errors.storage import *  # noqa: F403

#: Errors that another attempt may cure.
TRANSIENT = (BrokerAway, NotNow)


def _subclasses(root: type[OnceMQError]) -> list[type[OnceMQError]]:
    return [root, *(found for child in root.__subclasses__() for found in _subclasses(child))]


#: Code → exception class, for all interfaces.
BY_CODE: dict[str, type[OnceMQError]] = {kind.code: kind for kind in _subclasses(OnceMQError)}

for _kind in BY_CODE.values():
    # Tracebacks and pickles name the public module.
    _kind.__module__ = "oncemq.errors"


def from_code(code: str, text: str) -> OnceMQError:
    """Return the exception for a code that came over the wire.

    >>> from_code("FENCED", "gone").exit_code
    7
    """
    kind = BY_CODE.get(code)
    return kind(text) if kind is not None else Refused(f"{code}: {text}")
