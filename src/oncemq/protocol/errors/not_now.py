"""Temporary conditions. The broker decided nothing, and the same command may succeed later."""

from __future__ import annotations

from oncemq.protocol.errors.base import NotNow


class Gap(NotNow):
    """An earlier command of this session has not arrived."""

    code = "GAP"
    advice = "The client automatically resends from the first missing number."


class WindowFull(NotNow):
    """Too many commands are in flight."""

    code = "WINDOW_FULL"
    http_status = 429
    advice = "The client automatically waits for answers."


class Busy(NotNow):
    """Another client holds this subscription for a short time."""

    code = "BUSY"
    http_status = 409
    advice = "The client retries automatically until its timeout."


class DiskFull(NotNow):
    """The broker's disk is full: it accepts acks, but no new messages."""

    code = "DISK_FULL"
    http_status = 507
    advice = "Free disk space, or let the subscribers catch up. Puts resume automatically."


class TopicFull(NotNow):
    """The topic has reached its quota, and its overflow policy is to refuse messages."""

    code = "TOPIC_FULL"
    http_status = 507
    advice = "Let the subscribers catch up, or give the topic a larger quota. Puts resume automatically."


class KeysFull(NotNow):
    """A principal, or all together, have as many idempotency keys as the limits allow. Keys are never deleted
    automatically before they expire."""

    code = "KEYS_FULL"
    http_status = 429
    advice = (
        "Use a session, which numbers its requests, or wait until older keys expire. `oncemq keys` shows who has how "
        "many; `oncemq keys rm` frees keys of requests that are not repeated any more."
    )


class QuotaFull(NotNow):
    """The topics of a user store as many bytes as its quota allows."""

    code = "QUOTA_FULL"
    http_status = 507
    advice = "Let the subscribers catch up, or ask an administrator for a larger quota. Puts resume automatically."


class RateLimited(NotNow):
    """The user, or the address, has reached a limit per time: messages per second, bytes in flight, or failed
    logins."""

    code = "RATE_LIMITED"
    http_status = 429
    advice = "The client retries automatically. An administrator sets the quotas of a user in auth.toml."


class Overloaded(NotNow):
    """The broker is overloaded."""

    code = "OVERLOADED"
    advice = "Try again later, with fewer clients or larger batches."


class Stopping(NotNow):
    """The broker is stopping."""

    code = "STOPPING"
    advice = "The client retries automatically until the broker is back."


class Standby(NotNow):
    """This broker is a standby: it waits until the active broker of the same journal stops."""

    code = "STANDBY"
    advice = "Give the client the addresses of all brokers: it tries the others automatically."


class DamagedInTransit(NotNow):
    """The payload does not match its checksum."""

    code = "DAMAGED_IN_TRANSIT"
    advice = "The client resends it automatically. If this happens again, check memory and network hardware."
