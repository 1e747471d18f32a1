"""Database URLs as people may see them: without the password.

A password is in the URL and nowhere else: not in `describe`, not in an error. A URL in which a password was not written
as URLs want it may have parts of it anywhere: then nothing of it is told.
"""

from __future__ import annotations

import re
from urllib.parse import quote

HIDDEN = "postgresql://…"
_PORTS = re.compile(r"\d*(,\d*)*")


def describe(url: str) -> str:
    """For people: where it stores. User, host, port and database, and nothing else."""
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        # Only the database's own library can tell where in the URL a password is.
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
