"""Database URLs for people: without the password.

A password appears only in the URL, never in `describe` and never in an error. In a URL in which the password is not
escaped properly, parts of it may be anywhere: then nothing of the URL is shown.
"""

from __future__ import annotations

import re
from urllib.parse import quote

HIDDEN = "postgresql://…"
_PORTS = re.compile(r"\d*(,\d*)*")


def describe(url: str) -> str:
    """Return user, host, port and database of a URL, and nothing else."""
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        # Only the library of the database knows where in the URL a password is.
        return HIDDEN
    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except psycopg.Error:
        return HIDDEN
    host, port, name = parts.get("host", ""), parts.get("port", ""), parts.get("dbname", "")
    if "@" in host + name or not _PORTS.fullmatch(port):
        return HIDDEN
    user = quote(parts["user"], safe="") + "@" if "user" in parts else ""
    port = port and ":" + port
    if host.startswith("/"):
        return f"postgresql://{user}{port}/{quote(name)}?host={host}"
    return f"postgresql://{user}{host}{port}/{quote(name)}"
