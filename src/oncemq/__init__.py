"""OnceMQ: durable topics, exactly once, through every crash."""

from oncemq.version import __version__ as __version__
