"""Publish the lines of a file over datagrams, each exactly once, even if this program is killed and restarted.

    python examples/datagrams/publish_file.py readings readings.txt 127.0.0.1:5560

Line 1 has number 1, and so on. The broker remembers the last number of each publisher, so the program needs no state of
its own. The file may grow between two runs. Existing lines must not change. If the broker has users, ONCEMQ_TOKEN or
ONCEMQ_TOKEN_FILE has the access token.
"""

import sys
from contextlib import closing
from pathlib import Path

from peers import Publisher, Refused, token_from_environment

if len(sys.argv) < 3:
    raise SystemExit(__doc__)
topic, path = sys.argv[1:3]
host, _, port = (sys.argv[3] if len(sys.argv) > 3 else "127.0.0.1:5560").rpartition(":")
lines = Path(path).read_bytes().splitlines()
try:
    gateway = (host, int(port))
    with closing(Publisher(gateway, f"lines of {path}", access_token=token_from_environment)) as publisher:
        done = publisher.last_number
        for line in lines[done:]:
            publisher.put(topic, line, create=True)
        publisher.flush()
except TimeoutError as error:
    raise SystemExit(f"{error}: is `oncemq serve --udp` running? Start this again to continue.") from None
except Refused as error:
    raise SystemExit(f"refused: {': '.join(error.args)}") from None
print(f"{done} lines were there, {len(lines) - done} are new")
if publisher.refusals:
    raise SystemExit("\n".join(f"line {number} was refused: {code}" for number, code in publisher.refusals.items()))
