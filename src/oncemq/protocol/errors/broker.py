"""Refusals by the broker. A refused command changed nothing, and repeating it repeats the answer."""

from __future__ import annotations

from oncemq.protocol.errors.base import Refused

# The request.


class Malformed(Refused):
    """The request is not valid."""

    code = "MALFORMED"
    advice = "Compare the request with docs/protocol.md. Client and broker may have different versions."
    http_advice = "Compare the request with /docs, which describes every request."


class VersionUnsupported(Refused):
    """Client and broker speak different versions of the protocol."""

    code = "VERSION_UNSUPPORTED"
    advice = "Upgrade the older of the two."


class Unsupported(Refused):
    """The broker does not support this option, or this combination of options."""

    code = "UNSUPPORTED"
    http_status = 501
    advice = "Leave the option out, or upgrade the broker."


class NameInvalid(Refused):
    """A name is empty, too long, or contains characters that are not allowed."""

    code = "NAME_INVALID"
    advice = "Use 1 to 255 bytes of UTF-8 without control characters; '*' and '#' are reserved for patterns."
    http_advice = (
        "Use 1 to 255 bytes of UTF-8 (512 for keys) without control characters; '*' and '#' are reserved for patterns."
    )


class TooLarge(Refused):
    """A message, a batch or a request is larger than the limit."""

    code = "TOO_LARGE"
    http_status = 413
    advice = "Split the batch, or store the large value elsewhere and send a reference to it."
    http_advice = (
        "Split the request. The gateway's setting `http.body_bytes_max` limits a body; the broker's `batch_bytes_max` "
        "limits the messages that are stored together."
    )


class LimitReached(Refused):
    """A limit of the broker is reached: number of topics, subscriptions, sessions or registry entries."""

    code = "LIMIT_REACHED"
    http_status = 429
    advice = "Delete what is no longer needed (`oncemq topics rm`, `oncemq sessions rm`), or raise the limit."
    http_advice = "Delete what is no longer needed (DELETE /v1/topics/{topic}), or raise the broker's limit."


# Users.


class Unauthenticated(Refused):
    """The broker does not know the credentials, or there are none."""

    code = "UNAUTHENTICATED"
    exit_code = 10
    http_status = 401
    advice = (
        "Give a valid token: `connect(token=…)`, ONCEMQ_TOKEN or `oncemq context add`. An administrator creates one "
        "with `oncemq auth token USER`."
    )
    http_advice = "Send `Authorization: Bearer TOKEN`. An administrator creates a token with `oncemq auth token USER`."


class Forbidden(Refused):
    """The user does not have the right to do this."""

    code = "FORBIDDEN"
    exit_code = 10
    http_status = 403
    advice = "An administrator grants rights: `oncemq auth grant USER VERB TOPIC`. `oncemq auth check` explains."


class QuotaReached(Refused):
    """A quota of the user is reached: connections, topics, subscriptions, sessions, keys or registry entries."""

    code = "QUOTA_REACHED"
    http_status = 429
    advice = "Delete what is no longer needed, or ask an administrator for a larger quota in auth.toml."


# Topics and subscriptions.


class TopicUnknown(Refused):
    """The topic does not exist."""

    code = "TOPIC_UNKNOWN"
    exit_code = 5
    http_status = 404
    advice = "Create it (`oncemq topics create`), subscribe to it first, or put with `create`."
    http_advice = "Create it (PUT /v1/topics/{topic}), subscribe to it first, or put with `?create=true`."


class TopicExists(Refused):
    """The topic already exists with different settings."""

    code = "TOPIC_EXISTS"
    http_status = 409
    advice = "Use the topic as it is, or delete it first."


class TopicGone(Refused):
    """The topic was deleted. A new topic of the same name is a different topic."""

    code = "TOPIC_GONE"
    exit_code = 5
    http_status = 410
    advice = "Subscribe again. A new topic does not have the messages of the deleted one."


class NotSubscribed(Refused):
    """The subscription does not exist."""

    code = "NOT_SUBSCRIBED"
    exit_code = 5
    http_status = 404
    advice = "Subscribe first (`oncemq sub TOPIC SUBSCRIBER`)."
    http_advice = (
        "Subscribe first: PUT /v1/topics/{topic}/subscriptions/{subscriber}; in the queue, POST /consumer/register."
    )


class OffsetOutOfRange(Refused):
    """The offset is beyond the end of the topic."""

    code = "OFFSET_OUT_OF_RANGE"
    http_status = 416
    advice = "Use an offset that the broker returned."


class RangeGone(Refused):
    """The requested messages are no longer stored."""

    code = "RANGE_GONE"
    http_status = 410
    advice = "Start at `earliest`, or set a retention that keeps messages longer."


class Fenced(Refused):
    """Another client took over this name. This client cannot continue."""

    code = "FENCED"
    exit_code = 7
    http_status = 409
    advice = (
        "Run one client per name. If the other client is not wanted, stop it and connect again. The outcome of "
        "commands in flight is unknown."
    )


class SubscriptionFenced(Fenced):
    """Another client took over this subscription. The client itself can continue."""

    code = "SUBSCRIPTION_FENCED"
    advice = "Run one client per subscription. If the other client is not wanted, stop it and open again."


class Sought(Refused):
    """A seek moved the subscription. Messages that were fetched before belong to its old position."""

    code = "SOUGHT"
    http_status = 409
    advice = (
        "Open the subscription again: it continues at its new position. Iteration in the client does so automatically."
    )


class EarlierFailed(Refused):
    """A transaction that was sent before this one was not committed, and this one continues it."""

    code = "EARLIER_FAILED"
    http_status = 409
    advice = "Begin again at the position of the subscription: get its messages once more."


class LeaseLost(Refused):
    """The lease on this message has ended. Another worker has the message or has finished it."""

    code = "LEASE_LOST"
    exit_code = 7
    http_status = 409
    advice = "Undo the work or make it idempotent. Extend leases in time, or use a longer lease."
    #: The offsets of the messages, if the client knows them.
    offsets: tuple[int, ...] = ()


class SubscriptionExists(Refused):
    """The subscription already exists with different settings."""

    code = "SUBSCRIPTION_EXISTS"
    http_status = 409
    advice = "Use the subscription as it is, or unsubscribe first."


class SubscriptionExpired(Refused):
    """The subscription was deleted: it was the slowest one when its topic reached its quota."""

    code = "SUBSCRIPTION_EXPIRED"
    exit_code = 5
    http_status = 410
    advice = "Subscribe again, which creates a new subscription. Consume faster, or give the topic a larger quota."


class KindMismatch(Refused):
    """Wrong kind of subscription: use take and ack on a shared one, get and ack on an exclusive one."""

    code = "KIND_MISMATCH"
    http_status = 409
    advice = "Use take and ack on a shared subscription, get and ack on an exclusive one."


# Sessions, keys and stages.


class SessionUnknown(Refused):
    """The session does not exist, or has expired."""

    code = "SESSION_UNKNOWN"
    http_status = 404
    advice = "Connect again. The outcome of commands in flight is unknown: check it before you repeat them."


class SequenceReused(Refused):
    """The number of this command was already used for a different command."""

    code = "SEQUENCE_REUSED"
    http_status = 409
    advice = "A client must resend the same bytes under the same number. This is a bug in the client."


class VerdictForgotten(Refused):
    """The broker no longer has the result of this command: the client reported that it had received it."""

    code = "VERDICT_FORGOTTEN"
    http_status = 409
    advice = "A client must not resend a command after it reported the result as received. This is a bug in the client."


class KeyReused(Refused):
    """The idempotency key was already used for a different request."""

    code = "KEY_REUSED"
    http_status = 422
    advice = "Use a new key for a new request."


class StageUnknown(Refused):
    """The stage does not exist: it expired or was aborted."""

    code = "STAGE_UNKNOWN"
    http_status = 404
    advice = "Stage the messages again, then commit."


class StageMismatch(Refused):
    """The stage does not have the topic or the number of messages that the request says."""

    code = "STAGE_MISMATCH"
    http_status = 409
    advice = "Abort, and stage the messages again."


class StageCommitted(Refused):
    """This writer has already committed this batch."""

    code = "STAGE_COMMITTED"
    http_status = 409
    advice = "Nothing to do: the messages are already stored."


class BatchChanged(Refused):
    """This batch number was committed before with different content. Nothing was written."""

    code = "BATCH_CHANGED"
    http_status = 409
    advice = (
        "For a stream, the checkpoint has lost entries or was restored from an older copy: restore the newest copy of "
        "it, or start with a new checkpoint, which continues at the position of the subscription. For a batch write, "
        "use a new `writeId`, or the next `writeNumber`."
    )


class RegistryConflict(Refused):
    """The registry entry does not have the expected version."""

    code = "REGISTRY_CONFLICT"
    http_status = 409
    advice = "Read the entry again, then decide again."


class BrokerBug(Refused):
    """The broker failed while it processed the command. Nothing was changed."""

    code = "BROKER_BUG"
    http_status = 500
    advice = "Report it, with the broker's log."
