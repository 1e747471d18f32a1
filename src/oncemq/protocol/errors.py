"""Every exception of OnceMQ, and the one table of stable codes.

    OnceMQError
    ├── Refused                      the broker decided: no. Repeating the command repeats the answer
    │   ├── Malformed                MALFORMED
    │   ├── VersionUnsupported       VERSION_UNSUPPORTED
    │   ├── Unsupported              UNSUPPORTED
    │   ├── NameInvalid              NAME_INVALID
    │   ├── TooLarge                 TOO_LARGE
    │   ├── LimitReached             LIMIT_REACHED
    │   ├── TopicUnknown             TOPIC_UNKNOWN
    │   ├── TopicExists              TOPIC_EXISTS
    │   ├── TopicGone                TOPIC_GONE
    │   ├── NotSubscribed            NOT_SUBSCRIBED
    │   ├── OffsetOutOfRange         OFFSET_OUT_OF_RANGE
    │   ├── RangeGone                RANGE_GONE
    │   ├── Fenced                   FENCED
    │   │   └── SubscriptionFenced   SUBSCRIPTION_FENCED
    │   ├── Sought                   SOUGHT
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
    │   ├── RegistryConflict         REGISTRY_CONFLICT
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
    │   ├── OriginRefused            ORIGIN_REFUSED
    │   └── BrokerBug                BROKER_BUG
    ├── NotNow                       nothing was decided: the same command may succeed later
    │   ├── Gap                      GAP
    │   ├── WindowFull               WINDOW_FULL
    │   ├── Busy                     BUSY
    │   ├── DiskFull                 DISK_FULL
    │   ├── TopicFull                TOPIC_FULL
    │   ├── KeysFull                 KEYS_FULL
    │   ├── Overloaded               OVERLOADED
    │   ├── Stopping                 STOPPING
    │   ├── Standby                  STANDBY
    │   └── DamagedInTransit         DAMAGED_IN_TRANSIT
    ├── BrokerAway                   BROKER_AWAY
    ├── BrokerRewound                BROKER_REWOUND
    ├── NothingNew                   NOTHING_NEW
    ├── ClientClosed                 CLIENT_CLOSED
    ├── ForkedError                  FORKED
    ├── ListenFailed                 LISTEN_FAILED
    ├── SettingInvalid               SETTING_INVALID
    ├── MissingExtra                 MISSING_EXTRA
    ├── PipelineInvalid              PIPELINE_INVALID
    ├── PipelineFailed               PIPELINE_FAILED
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

Two refusals are about the client, not about what it asked for: after `Fenced` and `SessionUnknown` nobody knows
whether what was in flight has happened, as after `BrokerAway`.

Each is a name of `oncemq` as well. An exception's docstring is what it means; `advice` is what to do about it. Both go
into docs/reference/errors.md, with the exit code of the command line and the HTTP status.
"""

from __future__ import annotations

from typing import ClassVar


class OnceMQError(Exception):
    """Something went wrong in OnceMQ."""

    code: ClassVar[str] = "ERROR"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    #: An error may bring an advice of its own.
    advice: str = "Read the message; it says what happened."
    #: The same for those who call over HTTP, where the command line's words would not help; empty: `advice`.
    http_advice: ClassVar[str] = ""

    def __init__(self, text: str = "") -> None:
        super().__init__(text or (self.__doc__ or "").strip())
        self.text = str(self)


# What a client can provoke.


class Refused(OnceMQError):
    """The broker refused the command. It changed nothing."""

    code = "REFUSED"
    exit_code = 4
    http_status = 400
    advice = "The command as it stands can't succeed; change it."


class Malformed(Refused):
    """The request could not be read."""

    code = "MALFORMED"
    advice = "Compare the request with docs/protocol.md; a client and a broker of different versions may be the cause."
    http_advice = "Compare it with /docs, which describes every request."


class VersionUnsupported(Refused):
    """Client and broker speak different versions of the protocol."""

    code = "VERSION_UNSUPPORTED"
    advice = "Upgrade the older of the two."


class Unsupported(Refused):
    """The broker knows the request's form, but not this option."""

    code = "UNSUPPORTED"
    http_status = 501
    advice = "Leave the option out, or upgrade the broker."


class NameInvalid(Refused):
    """A name is empty, too long, or holds characters that it may not hold."""

    code = "NAME_INVALID"
    advice = "Names have 1 to 255 bytes of UTF-8, no control characters; '*' and '#' are reserved for patterns."
    http_advice = (
        "Names have 1 to 255 bytes of UTF-8, keys 1 to 512, and no control characters; '*' and '#' are reserved for "
        "patterns."
    )


class TooLarge(Refused):
    """A message or batch is larger than the broker takes."""

    code = "TOO_LARGE"
    http_status = 413
    advice = "Split the batch, or keep the large value elsewhere and send a reference to it."
    http_advice = (
        "Split the request. The gateway's setting `http.body_bytes_max` bounds a body, the broker's `batch_bytes_max` "
        "the messages that are stored together."
    )


class LimitReached(Refused):
    """A bound of the broker (topics, subscriptions, sessions, registry) is reached."""

    code = "LIMIT_REACHED"
    http_status = 429
    advice = "Remove what is no longer needed (`oncemq topics rm`, `oncemq sessions rm`)."
    http_advice = "Remove what is no longer needed (DELETE /v1/topics/{topic}), or raise the broker's setting."


class TopicUnknown(Refused):
    """There is no topic of that name."""

    code = "TOPIC_UNKNOWN"
    exit_code = 5
    http_status = 404
    advice = "Create it (`oncemq topics create`), subscribe to it first, or put with `create`."
    http_advice = "Make it (PUT /v1/topics/{topic}), subscribe to it first, or put with `?create=true`."


class TopicExists(Refused):
    """A topic of that name exists already, with other settings."""

    code = "TOPIC_EXISTS"
    http_status = 409
    advice = "Use it as it is, or delete it first."


class TopicGone(Refused):
    """The topic was deleted; one of the same name would be another topic."""

    code = "TOPIC_GONE"
    exit_code = 5
    http_status = 410
    advice = "Subscribe again: the new topic's messages have nothing to do with the old one's."


class NotSubscribed(Refused):
    """There is no such subscription."""

    code = "NOT_SUBSCRIBED"
    exit_code = 5
    http_status = 404
    advice = "Subscribe first (`oncemq sub TOPIC SUBSCRIBER`)."
    http_advice = (
        "Subscribe first: PUT /v1/topics/{topic}/subscriptions/{subscriber}; in the queue, POST /consumer/register."
    )


class OffsetOutOfRange(Refused):
    """The offset lies beyond the topic's end."""

    code = "OFFSET_OUT_OF_RANGE"
    http_status = 416
    advice = "Use an offset that the broker has given out."


class RangeGone(Refused):
    """The messages asked for are no longer stored."""

    code = "RANGE_GONE"
    http_status = 410
    advice = "Start at `earliest`, or set a retention that keeps messages longer."


class Fenced(Refused):
    """Another client took over this identity. This one is finished."""

    code = "FENCED"
    exit_code = 7
    http_status = 409
    advice = (
        "Run one client per name. If the other one should not be there, stop it and connect again. What was in flight "
        "may or may not have happened."
    )


class SubscriptionFenced(Fenced):
    """Another client took over this subscription; the client itself goes on."""

    code = "SUBSCRIPTION_FENCED"
    advice = "Run one client per name. If the other one should not be there, stop it and connect again."


class Sought(Refused):
    """The subscription was moved by a seek; what was in hand belongs to its former position."""

    code = "SOUGHT"
    http_status = 409
    advice = "Open the subscription again: it goes on at its new position. The client's iteration does so by itself."


class LeaseLost(Refused):
    """The lease on this message was over: somebody else has it, or has settled it."""

    code = "LEASE_LOST"
    exit_code = 7
    http_status = 409
    advice = "Undo what was done with the message, or make it idempotent. Extend leases, or ask for longer ones."
    #: Which messages, where the client knows.
    offsets: tuple[int, ...] = ()


class SubscriptionExists(Refused):
    """The subscription exists already, and is shared in another way."""

    code = "SUBSCRIPTION_EXISTS"
    http_status = 409
    advice = "Use it as it is, or unsubscribe first."


class SubscriptionExpired(Refused):
    """The subscription was the slowest when its topic reached its quota, and was ended."""

    code = "SUBSCRIPTION_EXPIRED"
    exit_code = 5
    http_status = 410
    advice = "Subscribe again: it starts anew. Consume faster, or give the topic a larger quota."


class KindMismatch(Refused):
    """A shared subscription is not consumed in this way, or one with an owner is not in that."""

    code = "KIND_MISMATCH"
    http_status = 409
    advice = "Take and settle messages of a shared subscription; get and ack those of any other."


class SessionUnknown(Refused):
    """The broker does not know this session (any more)."""

    code = "SESSION_UNKNOWN"
    http_status = 404
    advice = "Connect again. What was in flight may or may not have happened; look before you repeat it."


class SequenceReused(Refused):
    """A number was used again for another command."""

    code = "SEQUENCE_REUSED"
    http_status = 409
    advice = "A client must resend the same bytes under the same number. This is a bug of the client."


class VerdictForgotten(Refused):
    """The command was decided long ago, and the client said that it had seen the answer."""

    code = "VERDICT_FORGOTTEN"
    http_status = 409
    advice = "A client must not resend what it has seen answered. This is a bug of the client."


class KeyReused(Refused):
    """The idempotency key was used for another request."""

    code = "KEY_REUSED"
    http_status = 422
    advice = "Use a new key for a new request."


class StageUnknown(Refused):
    """There is no such stage: it expired, or was aborted."""

    code = "STAGE_UNKNOWN"
    http_status = 404
    advice = "Stage the messages again, then commit."


class StageMismatch(Refused):
    """A stage does not hold what the commit says."""

    code = "STAGE_MISMATCH"
    http_status = 409
    advice = "Abort and stage the messages again."


class StageCommitted(Refused):
    """This batch of this writer was committed before."""

    code = "STAGE_COMMITTED"
    http_status = 409
    advice = "Nothing is to be done: the messages are stored already."


class RegistryConflict(Refused):
    """The registry entry is not what the command expected."""

    code = "REGISTRY_CONFLICT"
    http_status = 409
    advice = "Read the entry again and decide anew."


class ProducerUnknown(Refused):
    """There is no producer of that id."""

    code = "PRODUCER_UNKNOWN"
    exit_code = 5
    http_status = 404
    advice = "Register it first: POST /producer/register."


class ProducerRegistered(Refused):
    """The producer is registered for this topic already."""

    code = "PRODUCER_REGISTERED"
    http_status = 409
    advice = "Go on with the id that it has."


class ProducerElsewhere(Refused):
    """The producer is registered for another topic, and one id serves one topic."""

    code = "PRODUCER_ELSEWHERE"
    http_status = 409
    advice = "Register without an id: the producer gets one for each topic."


class NotRegistered(Refused):
    """The producer is not registered for this topic."""

    code = "NOT_REGISTERED"
    http_status = 403
    advice = "Register it for the topic first: POST /producer/register."


class ConsumerUnknown(Refused):
    """There is no consumer of that id."""

    code = "CONSUMER_UNKNOWN"
    exit_code = 5
    http_status = 404
    advice = "Register it first: POST /consumer/register."


class ConsumerSubscribed(Refused):
    """The consumer is subscribed to this topic already."""

    code = "CONSUMER_SUBSCRIBED"
    http_status = 409
    advice = "Go on consuming: what it has left is kept."


class NoConsumers(Refused):
    """Nobody is subscribed to this topic, and the queue takes no message that nobody would get."""

    code = "NO_CONSUMERS"
    http_status = 409
    advice = "Register a consumer first, or put with POST /v1/topics/{topic}/messages, where retention decides."


class Consumed(Refused):
    """The message that this request is about was consumed, and confirmed by a later request."""

    code = "CONSUMED"
    http_status = 410
    advice = "Go on with the first message that is not confirmed: ask for its position, or use a new key."
    #: Of the first message that is not confirmed, where it is known.
    position: int = -1


class PathUnknown(Refused):
    """There is nothing at this path."""

    code = "PATH_UNKNOWN"
    http_status = 404
    advice = "/docs lists what there is."


class MethodUnknown(Refused):
    """This path has no such method."""

    code = "METHOD_UNKNOWN"
    http_status = 405
    advice = "/docs lists what there is."
    #: Those that the path has.
    methods: tuple[str, ...] = ()


class MediaUnsupported(Refused):
    """The body's media type is none that this path takes."""

    code = "MEDIA_UNSUPPORTED"
    http_status = 415
    advice = "/docs lists what each path takes."


class OriginRefused(Refused):
    """The request was made by a web page of another origin, or under a host name that is not ours."""

    code = "ORIGIN_REFUSED"
    http_status = 403
    advice = "Allow the page's origin with the setting `http.origins`, or the name with `http.hosts`."


class BrokerBug(Refused):
    """The broker failed while it decided; nothing was changed."""

    code = "BROKER_BUG"
    http_status = 500
    advice = "Report it, with the broker's log."


# Nothing was decided.


class NotNow(OnceMQError):
    """The broker can't decide this now. The same command may succeed later."""

    code = "NOT_NOW"
    exit_code = 8
    http_status = 503
    advice = "Try again; the client does so by itself as long as its time allows."


class Gap(NotNow):
    """A command before this one has not arrived."""

    code = "GAP"
    advice = "The client goes back to the number after the broker's last one, by itself."


class WindowFull(NotNow):
    """Too many commands are in flight."""

    code = "WINDOW_FULL"
    http_status = 429
    advice = "The client waits for answers, by itself."


class Busy(NotNow):
    """Another client holds this subscription for a moment."""

    code = "BUSY"
    http_status = 409
    advice = "The client tries again until its time is over."


class DiskFull(NotNow):
    """The broker's disk is full: it takes acknowledgements, but no new messages."""

    code = "DISK_FULL"
    http_status = 507
    advice = "Free disk space, or let the subscribers catch up. Puts go on by themselves."


class TopicFull(NotNow):
    """The topic is at its quota, and its policy is to refuse."""

    code = "TOPIC_FULL"
    http_status = 507
    advice = "Let the subscribers catch up, or give the topic a larger quota. Puts go on by themselves."


class KeysFull(NotNow):
    """The table of idempotency keys is full. None is forgotten before its time."""

    code = "KEYS_FULL"
    http_status = 429
    advice = "Wait until older keys expire, or number the requests with a session instead."


class Overloaded(NotNow):
    """The broker has more to do than it takes on."""

    code = "OVERLOADED"
    advice = "Try again later, with fewer clients or larger batches."


class Stopping(NotNow):
    """The broker is stopping."""

    code = "STOPPING"
    advice = "The client tries again until the broker is back."


class Standby(NotNow):
    """This broker waits for another one, which serves the same journal, to leave its place."""

    code = "STANDBY"
    advice = "The client tries its other addresses by itself; give it all of them."


class DamagedInTransit(NotNow):
    """The payload does not match its checksum."""

    code = "DAMAGED_IN_TRANSIT"
    advice = "The client sends it again by itself. If it goes on, suspect memory or network hardware."


# What the environment does.


class BrokerAway(OnceMQError):
    """The broker does not answer."""

    code = "BROKER_AWAY"
    exit_code = 6
    http_status = 503
    advice = "Start it (`oncemq serve`), or check the address. What was in flight may or may not have happened."


class BrokerRewound(OnceMQError):
    """The broker is behind what it has confirmed: its data was set back to an older copy."""

    code = "BROKER_REWOUND"
    exit_code = 7
    http_status = 409
    advice = (
        "What it confirmed since that copy is lost; find out whether it can be put again. Opened anew, a subscription "
        "goes on where the broker stands."
    )


class NothingNew(OnceMQError):
    """There is nothing new for this subscription."""

    code = "NOTHING_NEW"
    exit_code = 3
    http_status = 204
    advice = "Come back later, or wait with `--wait`."
    http_advice = "Come back later, or wait for a message with `wait_ms`."


class ClientClosed(OnceMQError):
    """This client was closed."""

    code = "CLIENT_CLOSED"
    advice = "Connect again."


class ForkedError(OnceMQError):
    """This client or broker belongs to the parent process."""

    code = "FORKED"
    advice = "Connect in the child, or start children with the `spawn` method."


class ListenFailed(OnceMQError):
    """The broker could not listen at an address."""

    code = "LISTEN_FAILED"
    advice = "Another broker may run there: stop it, or listen elsewhere with `--listen`."

    def __init__(self, text: str = "", flag: str = "") -> None:
        """`flag`: what chooses the address, where `--listen` does not."""
        super().__init__(text)
        if flag:
            self.advice = f"Another process may listen there: stop it, or choose another address with `{flag}`."


class SettingInvalid(OnceMQError):
    """A setting has a value that it can't have."""

    code = "SETTING_INVALID"
    exit_code = 2
    advice = "docs/reference/settings.md lists the settings and their values."


class MissingExtra(OnceMQError):
    """An optional part is not installed."""

    code = "MISSING_EXTRA"
    exit_code = 2
    advice = "Install it with the pip command in the message."


class PipelineInvalid(OnceMQError):
    """A pipeline is declared in a way that can't be run."""

    code = "PIPELINE_INVALID"
    exit_code = 2
    advice = "Correct what is named; `oncemq pipeline validate` says whether something is left."


class PipelineFailed(OnceMQError):
    """A pipeline stopped because something in it failed. What it had not finished is done by the next run, once."""

    code = "PIPELINE_FAILED"
    advice = "Correct the cause and run it again: it goes on where it was. ONCEMQ_TRACEBACK=1 shows what Spark says."


class InboxRewound(OnceMQError):
    """The inbox's database is behind the broker: it was set back, and messages in between would be missing."""

    code = "INBOX_REWOUND"
    exit_code = 7
    http_status = 409
    advice = (
        "If the topic still stores them, `inbox.seek` back to the database's position; else restore a later copy of "
        "the database, or go on without them: `inbox.skip_to` (docs/howto/inbox.md)."
    )


class OutboxError(OnceMQError):
    """The outbox file can't be used."""

    code = "OUTBOX"
    exit_code = 9
    advice = "Check the path, its folder's permissions and its disk, then connect again: what was kept is finished."


class OutboxInvalid(OutboxError):
    """The file is not an outbox, or it is damaged."""

    code = "OUTBOX_INVALID"
    advice = "Give the path of an outbox, or of a file that is to be made. Keep a damaged one, and begin another."


class OutboxVersion(OutboxError):
    """The outbox was written by a newer version."""

    code = "OUTBOX_VERSION"
    advice = "Upgrade OnceMQ."


class OutboxFull(OutboxError):
    """The disk of the outbox is full: nothing was written."""

    code = "OUTBOX_FULL"
    exit_code = 8
    http_status = 507
    advice = "Free disk space and try again. What is in the outbox already is still sent."


class OutboxForeign(OutboxError):
    """The outbox belongs to another broker."""

    code = "OUTBOX_FOREIGN"
    http_status = 409
    advice = "Connect to the broker that it was begun with, or begin another outbox: one file per broker."


class OutboxRewound(OutboxError):
    """The outbox is older than what the broker has had of it: it was restored from a copy, or a copy was used."""

    code = "OUTBOX_REWOUND"
    exit_code = 7
    http_status = 409
    advice = "Keep the file, begin another outbox, and check what the application has put since the copy was made."


class JournalError(OnceMQError):
    """The journal can't be used."""

    code = "JOURNAL"
    exit_code = 9
    advice = (
        "Check the folder's path, permissions and disk, or the database's address; `oncemq journal check` verifies a "
        "folder."
    )


class JournalLocked(JournalError):
    """Another process uses this data folder."""

    code = "JOURNAL_LOCKED"
    advice = "Connect to the broker that has it (tcp://…), stop that broker, or choose another folder."


class JournalCorrupt(JournalError):
    """The journal is damaged in a place that was acknowledged."""

    code = "JOURNAL_CORRUPT"
    advice = (
        "Copy the data folder. `oncemq journal check` names the place, `export` saves what is readable, "
        "`cut` gives up what lies behind it."
    )


class JournalFailed(JournalError):
    """A write or sync failed. The broker stopped without answering."""

    code = "JOURNAL_FAILED"
    advice = "Check the disk, then start the broker again: it recovers what was acknowledged."


class JournalFenced(JournalFailed):
    """Another broker took over this journal. This one is finished, and answers nothing more."""

    code = "JOURNAL_FENCED"
    advice = "Nothing is lost: the other broker goes on. Start this one again, and it waits as its standby."


class JournalVersion(JournalError):
    """The journal was written by a newer version."""

    code = "JOURNAL_VERSION"
    advice = "Upgrade OnceMQ."


class RecordCorrupt(JournalError):
    """A stored batch does not match its checksum."""

    code = "RECORD_CORRUPT"
    advice = "The disk damaged it. `oncemq journal check` names the place; restore from a copy, or seek past it."


def _tree(root: type[OnceMQError]) -> list[type[OnceMQError]]:
    found = [root]
    for child in root.__subclasses__():
        found += _tree(child)
    return found


#: code → exception class: the one table that all interfaces use.
BY_CODE: dict[str, type[OnceMQError]] = {kind.code: kind for kind in _tree(OnceMQError)}


def from_code(code: str, text: str) -> OnceMQError:
    """The exception for a code that came over the wire.

    >>> from_code("FENCED", "gone").exit_code
    7
    """
    kind = BY_CODE.get(code)
    if kind is None:
        return Refused(f"{code}: {text}")
    return kind(text)
