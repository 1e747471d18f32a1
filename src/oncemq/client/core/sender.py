"""Which commands are sent now, and in which requests."""

from __future__ import annotations

from collections.abc import Sequence

from oncemq.client.core.commands.command_table import CommandTable
from oncemq.client.core.commands.pending import PendingCommand
from oncemq.client.core.commands.requests import RequestBuilder
from oncemq.client.core.options import Options
from oncemq.client.core.validation import too_large
from oncemq.protocol.commands import As, Command, Get, GetAny, Numbered, Put, Read, Take
from oncemq.protocol.frames import Frame, encode_request
from oncemq.protocol.replies import Refusal


class RequestSender:
    """Encodes requests. It does not decide whether the connection allows to send."""

    def __init__(self, options: Options, commands: CommandTable) -> None:
        self._options = options
        self._commands = commands
        self._session = commands.session
        self._window = commands.window
        self._requests = commands.requests

    def _builder(self) -> RequestBuilder:
        return RequestBuilder(self._options.request_commands_max, self._options.request_bytes_max)

    def send_unnumbered(self, now_ms: float, requests: list[list[Frame]]) -> None:
        """Commands that bring messages have a request of their own, because they may wait or bring many messages. The
        others share requests."""
        builder = self._builder()
        for command in self._commands.unnumbered:
            if not command.must_send or now_ms < command.not_before_ms:
                continue
            plain = command.plain
            if isinstance(plain, Get | GetAny | Read | Take):
                requests.append(self._unnumbered_request((command,), now_ms, plain.wait_ms))
            elif full := builder.add(command):
                requests.append(self._unnumbered_request(full, now_ms))
        if builder.commands:
            requests.append(self._unnumbered_request(builder.commands, now_ms))

    def _unnumbered_request(self, commands: Sequence[PendingCommand], now_ms: float, wait_ms: int = 0) -> list[Frame]:
        timeout_ms = wait_ms + self._options.wait_slack_ms if wait_ms else self._options.timeout_ms
        sent = self._requests.add(commands, now_ms, timeout_ms, is_poll=wait_ms > 0)
        bodies = [command.body for command in commands]
        payloads = [payload for command in commands for payload in command.payloads]
        return self._requests.encoded(sent, encode_request(sent.request_id, bodies, payloads))  # type: ignore[arg-type]

    def send_numbered(self, now_ms: float, requests: list[list[Frame]]) -> None:
        """Small commands share a request, in order of number; a large one has its own."""
        builder = self._builder()
        for command in self._window.take():
            if command.payloads and not self._is_sendable(now_ms, command):
                break
            if full := builder.add(command):
                requests.append(self._numbered_request(full, now_ms))
        if builder.commands and self._session.finished is None:
            requests.append(self._numbered_request(builder.commands, now_ms))

    def _is_sendable(self, now_ms: float, command: PendingCommand) -> bool:
        """A command may have been submitted before the broker said how large a batch may be. If it is too large, it is
        refused here and sent as a void. False: the outbox could not write that."""
        error = too_large(command.body, command.payloads, self._session.batch_bytes_max)  # type: ignore[arg-type]
        return error is None or self._commands.void_refused(now_ms, command, Refusal(error.code, error.text))

    def _numbered_request(self, commands: list[PendingCommand], now_ms: float) -> list[Frame]:
        session, epoch, seen_below = self._session.name, self._session.epoch, self._window.seen_below
        self._commands.observer.sending(session, commands)
        sent = self._requests.add(commands, now_ms, self._options.timeout_ms)
        numbered = [
            Numbered(session, epoch, command.number, seen_below, command.body)  # type: ignore[arg-type]
            for command in commands
        ]
        sendable: Sequence[Command] = numbered
        if any(command.caller for command in commands):
            sendable = [
                As(command.caller, each, True) if command.caller else each
                for command, each in zip(commands, numbered, strict=True)
            ]
        payloads = [payload for command in commands for payload in command.payloads]
        return self._requests.encoded(sent, encode_request(sent.request_id, sendable, payloads))

    def alone(self, operation: Put, payload: Frame) -> list[Frame]:
        """The request of a put before which there is no other."""
        session, number = self._session, self._window.next_number
        numbered = Numbered(session.name, session.epoch, number, number, operation)
        return encode_request(self._requests.next_id, (numbered,), (payload,))
