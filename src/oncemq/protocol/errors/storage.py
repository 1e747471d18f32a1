"""Errors of the journal, where the broker stores its data."""

from __future__ import annotations

from typing import ClassVar

from oncemq.protocol.errors.base import OnceMQError


class JournalError(OnceMQError):
    """The journal cannot be used."""

    code = "JOURNAL"
    exit_code = 9
    advice = (
        "Check the path, permissions and disk of the folder, or the address of the database. `oncemq journal check` "
        "verifies a folder."
    )


class JournalLocked(JournalError):
    """Another process uses this data folder."""

    code = "JOURNAL_LOCKED"
    advice = "Connect to the broker that uses it (oncemq://…), stop that broker, or choose another folder."


class JournalCorrupt(JournalError):
    """The journal is damaged at a position that was acknowledged."""

    code = "JOURNAL_CORRUPT"
    folder_advice: ClassVar[str] = (
        "Copy the data folder. `oncemq journal check` prints the position, `export` saves what is readable, "
        "`cut` deletes everything after it."
    )
    database_advice: ClassVar[str] = (
        "Restore the database from a backup, or fail over to a replica. `pg_amcheck` verifies its files; the view "
        "`oncemq.message` shows the messages that can be read."
    )
    #: Where the kind of the journal is known, an error has the advice for that kind.
    advice = f"Files: {folder_advice} PostgreSQL: {database_advice}"


class JournalFailed(JournalError):
    """A write or sync failed. The broker stopped without answering."""

    code = "JOURNAL_FAILED"
    advice = "Check the disk, then start the broker again: it recovers everything that was acknowledged."


class JournalFenced(JournalFailed):
    """Another broker took over this journal. This broker stopped."""

    code = "JOURNAL_FENCED"
    advice = "Nothing is lost: the other broker continues. If you start this broker again, it becomes the standby."


class JournalVersion(JournalError):
    """The journal was written by a newer version."""

    code = "JOURNAL_VERSION"
    advice = "Upgrade OnceMQ."


class RecordCorrupt(JournalError):
    """A stored batch is damaged or lost."""

    code = "RECORD_CORRUPT"
    advice = (
        "The disk of the broker damaged or lost the batch. Restore it from a backup, or seek past it. In a folder, "
        "`oncemq journal check` lists everything that is damaged."
    )
    http_advice = "The disk of the broker damaged or lost the batch. Seek past it; the message names the next offset."


class Undecodable(RecordCorrupt):
    """Stored messages can't be decoded: their batch is not valid."""

    code = "UNDECODABLE"
    advice = "Skip them: ack the last of them, or `oncemq seek TOPIC SUBSCRIBER OFFSET` to the offset behind it."
    http_advice = "Skip them: ack the last of them, or seek to the offset behind it."
