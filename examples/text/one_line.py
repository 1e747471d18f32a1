"""Send one request in one line, without an id. This form is for tests by hand.

    python examples/text/one_line.py sub "Cooking Recipes" alice
    python examples/text/one_line.py put "Cooking Recipes" one pizza
    python examples/text/one_line.py get "Cooking Recipes" alice

If a reply is lost, a repeated put may be stored twice, and a repeated get may miss a message (docs/howto/text.md).
"""

from __future__ import annotations

import os
import sys

from lazy_pirate import ServerOffline, ask

URL = os.environ.get("TEXT_URL", "tcp://127.0.0.1:5556")


def quoted(name: str) -> str:
    """Return the name as it is written in a line: with quotes if it has spaces or starts with a quote."""
    if name and " " not in name and name[0] not in "\"'":
        return name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def line_of(operation: str, *words: str) -> str:
    """Return the request. Names are quoted. A put has one name, followed by the content, unchanged."""
    names = 1 if operation == "put" else 2
    return " ".join([operation, *map(quoted, words[:names]), *words[names:]])


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    try:
        code, text = ask(URL, line_of(*sys.argv[1:]).encode())
    except ServerOffline as error:
        sys.exit(str(error))
    if code != "OK":
        sys.exit(f"{code}: {text.decode()}")
    print(text.decode(errors="replace"))


if __name__ == "__main__":
    main()
