"""One request in one line, for a try by hand: the form without ids.

    python examples/text/one_line.py sub orders alice
    python examples/text/one_line.py put orders one pizza
    python examples/text/one_line.py get orders alice

When a reply is lost, a put that is sent again may be stored twice, and a get may miss a message (docs/howto/text.md).
"""

from __future__ import annotations

import os
import sys

from lazy_pirate import ServerOffline, ask

URL = os.environ.get("TEXT_URL", "tcp://127.0.0.1:5556")


def main() -> None:
    try:
        code, text = ask(URL, " ".join(sys.argv[1:]).encode())
    except ServerOffline as error:
        sys.exit(str(error))
    if code != "OK":
        sys.exit(f"{code}: {text.decode()}")
    print(text.decode(errors="replace"))


if __name__ == "__main__":
    main()
