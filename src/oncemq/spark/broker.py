"""How Spark's processes reach a broker: by its address or by the name of a context, and never with a secret.

What is here is part of plans and tasks. Each process looks up the context on its own machine (ONCEMQ_CONTEXTS names the
file), and takes other credentials from its own environment (ONCEMQ_TOKEN). Does not import Spark.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypedDict, cast

import msgspec

from oncemq.config import endpoints
from oncemq.config.addresses import split_addresses
from oncemq.protocol import errors

if TYPE_CHECKING:
    from oncemq.client.sync import Client

#: The options of `format("oncemq")` that say how to reach the broker, and the fields that they set.
REACHING = {"url": "url", "context": "context", "tokenFile": "token_file", "tls": "tls"}


class BrokerArguments(TypedDict, total=False):
    """Arguments of `connect`, and of the functions that run something."""

    url: str
    context: str
    token_file: str
    tls: str


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    """Either `url` or `context` is set."""

    url: str = ""
    context: str = ""
    #: The file with the token, on each machine. "" = the token of the context or of the environment, if there is one.
    token_file: str = ""
    #: `true`, `false`, or the file with the certificate of the broker's authority, on each machine. "" = as above.
    tls: str = ""

    def __str__(self) -> str:
        return self.url or f"the broker of the context {self.context}"

    @property
    def arguments(self) -> BrokerArguments:
        """The fields that are set."""
        return cast("BrokerArguments", {name: value for name, value in msgspec.structs.asdict(self).items() if value})

    @property
    def options(self) -> dict[str, str]:
        """The options of `format("oncemq")`."""
        return {option: getattr(self, field) for option, field in REACHING.items() if getattr(self, field)}

    def endpoint(self) -> endpoints.Endpoint:
        """Return the address and the credentials on this machine, as they are now. It is never passed on. Raises
        SettingInvalid if this machine does not have the context."""
        return endpoints.choose([endpoints.arguments(self.arguments), endpoints.environment()]).endpoint

    def connect(self, **options: Any) -> Client:
        """Connect a client. Raises SettingInvalid if this machine does not have the context."""
        import oncemq

        client: Client = oncemq.connect(**self.arguments, **options)
        return client


def find_broker(
    *, url: str = "", context: str = "", token_file: str = "", tls: bool | str = "", pipeline_context: str = ""
) -> Broker:
    """Return the broker for the arguments of a run or the options of a source. The environment comes next, then the
    context that a pipeline names, then the current context. Raises SettingInvalid."""
    given = {"url": url, "context": context, "token_file": token_file, "tls": tls}
    sources = [
        endpoints.arguments({name: None if value == "" else value for name, value in given.items()}),
        endpoints.environment(),
        endpoints.file("the pipeline: ", {"context": pipeline_context}),
    ]
    return broker_of(endpoints.choose(sources))


def broker_of(choice: endpoints.Choice) -> Broker:
    """Return a choice of this machine in the form that other machines understand. Raises SettingInvalid for a broker
    that only its own process can reach, and for credentials that other machines would not find."""
    endpoint = choice.endpoint
    for url in split_addresses(endpoint.url):
        if url.startswith(("file:", "memory:")):
            raise errors.SettingInvalid(
                f"'{url}' is a broker inside one process, and Spark's workers are other processes that can't reach it; "
                "start a broker with `oncemq serve` (--data takes the folder) and use its oncemq:// address"
            )
    passed = {}
    for name, source in choice.sources.items():
        value = getattr(endpoint, name)
        if source.is_environment or value in ("", None):
            continue
        if name not in ("token_file", "tls"):
            raise errors.SettingInvalid(
                f"{source.shown(name)} is not passed to Spark's workers: use a context, which each of them looks up, "
                f"token_file, or {endpoints.variable(name)} in their environment"
            )
        passed[name] = _portable(value)
    if endpoint.context:
        return Broker(context=endpoint.context, **passed)
    return Broker(url=endpoint.url, **passed)


def _portable(value: bool | str) -> str:
    """A switch or a path as text. Workers have other working folders, and other home folders."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if value.startswith("~") else os.path.abspath(value)
