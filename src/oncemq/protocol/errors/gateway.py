"""Refusals by the gateways."""

from __future__ import annotations

from oncemq.protocol.errors.base import Refused

# The queue.


class ProducerUnknown(Refused):
    """The producer id does not exist."""

    code = "PRODUCER_UNKNOWN"
    exit_code = 5
    http_status = 404
    advice = "Register the producer first: POST /producer/register."


class ProducerRegistered(Refused):
    """The producer is already registered for this topic."""

    code = "PRODUCER_REGISTERED"
    http_status = 409
    advice = "Continue with the existing id."


class ProducerElsewhere(Refused):
    """The producer is registered for another topic. A producer id is valid for one topic."""

    code = "PRODUCER_ELSEWHERE"
    http_status = 409
    advice = "Register without an id: the producer gets one id per topic."


class NotRegistered(Refused):
    """The producer is not registered for this topic."""

    code = "NOT_REGISTERED"
    http_status = 403
    advice = "Register the producer for the topic first: POST /producer/register."


class ConsumerUnknown(Refused):
    """The consumer id does not exist."""

    code = "CONSUMER_UNKNOWN"
    exit_code = 5
    http_status = 404
    advice = "Register the consumer first: POST /consumer/register."


class ConsumerSubscribed(Refused):
    """The consumer is already subscribed to this topic."""

    code = "CONSUMER_SUBSCRIBED"
    http_status = 409
    advice = "Continue to consume: the consumer keeps its position."


class NoConsumers(Refused):
    """The topic has no consumers. The queue refuses messages that no consumer would receive."""

    code = "NO_CONSUMERS"
    http_status = 409
    advice = "Register a consumer first, or put with POST /v1/topics/{topic}/messages, where retention applies."


class Consumed(Refused):
    """The message of this request was already consumed, and a later request confirmed it."""

    code = "CONSUMED"
    http_status = 410
    advice = "Continue with the first unconfirmed message: request its position, or use a new key."
    #: The position of the first unconfirmed message; -1 = not known.
    position: int = -1


# HTTP.


class PathUnknown(Refused):
    """This path does not exist."""

    code = "PATH_UNKNOWN"
    http_status = 404
    advice = "/docs lists all paths."


class MethodUnknown(Refused):
    """This path does not support this method."""

    code = "METHOD_UNKNOWN"
    http_status = 405
    advice = "/docs lists the methods of each path."
    #: The methods that the path supports.
    methods: tuple[str, ...] = ()


class MediaUnsupported(Refused):
    """This path does not accept the media type of the body."""

    code = "MEDIA_UNSUPPORTED"
    http_status = 415
    advice = "/docs lists the media types that each path accepts."


class OriginRefused(Refused):
    """The request came from a web page of another origin, or may have come from one, or was sent to an unknown host
    name."""

    code = "ORIGIN_REFUSED"
    http_status = 403
    advice = (
        "Allow the page's origin with the setting `http.origins`, or the host name with `http.hosts`. A program that "
        "is taken for a browser can send `X-Requested-With`. With a session cookie, send `OnceMQ-CSRF`."
    )
