"""The links of callers: what a link remembers, such as schemas, is kept between the requests of a caller."""

from __future__ import annotations

from oncemq.gateways.bounded_dict import BoundedDict
from oncemq.gateways.link import Link


class CallerLinks:
    def __init__(self, link: Link) -> None:
        """`link` is the gateway's own."""
        self._own = link
        self._links: BoundedDict[str, Link] = BoundedDict()

    def of(self, caller: str) -> Link:
        """Return the link of a caller; the gateway's own if there are no users."""
        if not caller:
            return self._own
        link = self._links.get(caller)
        if link is None:
            link = self._links[caller] = self._own.for_caller(caller)
        return link
