"""Every exception of OnceMQ, under its public name."""

from oncemq.protocol.errors import *  # noqa: F403
from oncemq.protocol.errors import BY_CODE as BY_CODE
