"""Refuses requests of web pages of other origins, and requests under a host name that is not the gateway's.

A broker may have no users, and a browser on this machine runs pages of any site. A page that posts to the gateway
sends its origin. A page whose host name was made to point here (DNS rebinding) sends a foreign host. A page that only
links here, or embeds a response as an image, sends no origin, but its browser says that it belongs to another site.

Over TLS, the browser has found the host name in the gateway's certificate, so any host name is accepted.

Over plain HTTP, and under a name other than those of loopback, a browser does not say that. So a GET that changes
something is refused if it may come from a browser, unless it has something that a page of another site can't send: a
header that needs this gateway's permission (CORS), or the address of one of this gateway's own pages.
"""

from __future__ import annotations

import ipaddress
import re

from oncemq.config.addresses import is_loopback
from oncemq.gateways.http.settings import GatewaySettings
from oncemq.protocol import errors

#: What other sites may link to: pages for people, without side effects.
_PAGES = (b"/", b"/docs")
#: Headers that a page of another site can send only with permission (a preflight request, which fails).
_PERMITTED = (b"x-requested-with", b"idempotency-key", b"authorization", b"oncemq-csrf")
#: Headers that browsers add by themselves, and programs usually don't. A page can't suppress all of them.
_OF_BROWSERS = (b"cookie", b"referer", b"sec-ch-ua", b"sec-fetch-dest", b"upgrade-insecure-requests")
#: Headers of a request that nobody may ever look at.
_OF_PREFETCH = (b"sec-purpose", b"purpose", b"x-moz", b"x-purpose")


class OriginCheck:
    def __init__(self, settings: GatewaySettings) -> None:
        self._origins = {origin.rstrip("/").lower().encode() for origin in settings.origins}
        self._hosts = {name.lower() for name in (*settings.hosts, settings.host)}
        #: The gateway listens at an address that other machines reach. It can't know which of its addresses they use,
        #: so any address is accepted. A host name must be configured, since anybody can make a name of their own point
        #: here.
        self._is_open = not is_loopback(settings.host) and not settings.hosts
        #: Host headers that were accepted before.
        self._good: set[bytes] = set()

    def check(self, headers: dict[bytes, bytes], path: bytes, *, is_encrypted: bool = False) -> None:
        """Raises OriginRefused."""
        host = headers.get(b"host", b"")
        if host not in self._good and not is_encrypted:
            self._check_host(host)
        origin = headers.get(b"origin")
        if origin is None:
            if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site") and not _is_link(headers, path):
                raise errors.OriginRefused("a web page of another site may not call this gateway")
        elif not self._is_allowed(origin.lower(), host.lower(), is_encrypted=is_encrypted):
            raise errors.OriginRefused(f"a web page of {origin.decode('latin-1')} may not call this gateway")

    def check_change(self, headers: dict[bytes, bytes]) -> None:
        """Check a GET that changes something, after `check`. Raises OriginRefused."""
        site = headers.get(b"sec-fetch-site")
        if any(name in headers for name in _OF_PREFETCH):
            raise errors.OriginRefused("a request that changes something can't be sent in advance (prefetch)")
        if site is not None or b"origin" in headers or not _is_of_browser(headers):
            return
        if any(name in headers for name in _PERMITTED) or self._is_own_page(headers):
            return
        raise errors.OriginRefused(
            "this GET changes something, and it may come from a web page of another site; "
            "a program that is not a browser can send the header X-Requested-With with any value"
        )

    def _is_own_page(self, headers: dict[bytes, bytes]) -> bool:
        origin = b"/".join(headers.get(b"referer", b"").split(b"/")[:3]).lower()
        return self._is_allowed(origin, headers.get(b"host", b"").lower())

    def _check_host(self, host: bytes) -> None:
        name = re.sub(r":\d*$", "", host.decode("latin-1")).lower()
        if host and not self._is_ours(name):
            raise errors.OriginRefused(f"'{name}' is not a host name of this gateway")
        if len(self._good) < 100:
            self._good.add(host)

    def _is_ours(self, name: str) -> bool:
        if is_loopback(name) or name.strip("[]") in self._hosts:
            return True
        return self._is_open and _is_address(name.strip("[]"))

    def _is_allowed(self, origin: bytes, host: bytes, *, is_encrypted: bool = False) -> bool:
        if origin in self._origins or origin == b"https://" + host:
            return True
        # Anybody in the network can forge a page that was not encrypted.
        return not is_encrypted and origin == b"http://" + host


def _is_of_browser(headers: dict[bytes, bytes]) -> bool:
    """Every browser for people calls itself Mozilla. One that was told not to still sends some of its other headers."""
    if b"mozilla/" in headers.get(b"user-agent", b"").lower():
        return True
    if headers.get(b"accept-language", b"*") != b"*":
        return True
    return any(name in headers for name in _OF_BROWSERS)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_link(headers: dict[bytes, bytes], path: bytes) -> bool:
    return path in _PAGES and headers.get(b"sec-fetch-dest") == b"document"
