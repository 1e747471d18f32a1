"""Errors of the client's environment: connection, processes, settings, pipelines, inbox and outbox."""

from __future__ import annotations

from oncemq.protocol.errors.base import OnceMQError


class BrokerAway(OnceMQError):
    """The broker does not answer."""

    code = "BROKER_AWAY"
    exit_code = 6
    http_status = 503
    advice = "Start it (`oncemq serve`), or check the address. The outcome of commands in flight is unknown."
    http_advice = (
        "Repeat the request with the same key, number or position: it is not known whether it happened. If this lasts, "
        "start the broker (`oncemq serve`)."
    )


class TlsFailed(OnceMQError):
    """The connection could not be encrypted, or the certificate of the broker is not valid."""

    code = "TLS_FAILED"
    exit_code = 10
    http_status = 502
    advice = (
        "Compare the client's settings with the broker's certificate: the authority (`tls=\"ca.pem\"`), the name "
        "(`tls_server_name`) and the dates. A broker without TLS needs `tls=False`."
    )


class BrokerRewound(OnceMQError):
    """The broker has lost confirmed data: it was restored from an older copy."""

    code = "BROKER_REWOUND"
    exit_code = 7
    http_status = 409
    advice = (
        "Everything that was confirmed since that copy is lost. Put it again if you can. If you open the subscription "
        "again, it continues at the broker's position."
    )


class NothingNew(OnceMQError):
    """There are no new messages for this subscription."""

    code = "NOTHING_NEW"
    exit_code = 3
    http_status = 204
    advice = "Try again later, or wait with `--wait`."
    http_advice = "Try again later, or wait for a message with `wait_ms`."


class ClientClosed(OnceMQError):
    """This client was closed."""

    code = "CLIENT_CLOSED"
    advice = "Connect again."


class ForkedError(OnceMQError):
    """This client or broker belongs to the parent process."""

    code = "FORKED"
    advice = "Connect in the child process, or start children with the `spawn` method."


class ListenFailed(OnceMQError):
    """The broker could not listen at an address."""

    code = "LISTEN_FAILED"
    advice = "Another broker may be running there: stop it, or choose another address with `--listen`."

    def __init__(self, text: str = "", flag: str = "") -> None:
        """`flag` names the flag that sets the address, if it is not `--listen`."""
        super().__init__(text)
        if flag:
            self.advice = f"Another process may be listening there: stop it, or choose another address with `{flag}`."


class SettingInvalid(OnceMQError):
    """The value of a setting is not valid."""

    code = "SETTING_INVALID"
    exit_code = 2
    advice = "docs/reference/settings.md lists the settings and their values."


class MissingExtra(OnceMQError):
    """An optional dependency is not installed."""

    code = "MISSING_EXTRA"
    exit_code = 2
    advice = "Install it with the pip command in the message."


class PipelineInvalid(OnceMQError):
    """The declaration of a pipeline is not valid."""

    code = "PIPELINE_INVALID"
    exit_code = 2
    advice = "Correct the named error. `oncemq pipeline validate` checks the declaration."


class PipelineFailed(OnceMQError):
    """A pipeline failed and stopped. The next run completes the unfinished work exactly once."""

    code = "PIPELINE_FAILED"
    advice = "Correct the cause and run the pipeline again: it continues. ONCEMQ_TRACEBACK=1 shows the Spark traceback."


class CheckpointBehind(OnceMQError):
    """The checkpoint of a stream is behind its subscription: it has lost its last entries, or is an older copy."""

    code = "CHECKPOINT_BEHIND"
    exit_code = 7
    http_status = 409
    advice = (
        "Restore the newest copy of the checkpoint. Without one, start with a new checkpoint (empty its folder): the "
        "stream then continues at the position of the subscription (docs/spark.md)."
    )


class InboxRewound(OnceMQError):
    """The inbox database is behind the broker: it was restored from an older copy, and messages would be missing."""

    code = "INBOX_REWOUND"
    exit_code = 7
    http_status = 409
    advice = (
        "If the topic still has the messages, use `inbox.seek` to return to the database's position. Otherwise restore "
        "a later copy of the database, or continue without them with `inbox.skip_to` (docs/howto/inbox.md)."
    )


class OutboxError(OnceMQError):
    """The outbox file cannot be used."""

    code = "OUTBOX"
    exit_code = 9
    advice = "Check the path, the permissions of its folder and its disk, then connect again: stored commands are sent."


class OutboxInvalid(OutboxError):
    """The file is not an outbox, or it is damaged."""

    code = "OUTBOX_INVALID"
    advice = "Use the path of an outbox or of a new file. Keep a damaged file, and start a new outbox."


class OutboxVersion(OutboxError):
    """The outbox was written by a newer version."""

    code = "OUTBOX_VERSION"
    advice = "Upgrade OnceMQ."


class OutboxFull(OutboxError):
    """The disk of the outbox is full. Nothing was written."""

    code = "OUTBOX_FULL"
    exit_code = 8
    http_status = 507
    advice = "Free disk space and try again. Commands that are already in the outbox are still sent."


class OutboxForeign(OutboxError):
    """The outbox belongs to another broker."""

    code = "OUTBOX_FOREIGN"
    http_status = 409
    advice = "Connect to the broker that the outbox was created with, or use a new outbox: one file per broker."


class OutboxRewound(OutboxError):
    """The broker has received newer commands than this outbox contains: the file is an older copy."""

    code = "OUTBOX_REWOUND"
    exit_code = 7
    http_status = 409
    advice = "Keep the file, start a new outbox, and check what the application has put since the copy was made."
