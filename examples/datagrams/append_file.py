"""Append a topic's messages to a file over datagrams, each exactly once, however often this is killed.

    python examples/datagrams/append_file.py readings copy.txt 127.0.0.1:5560

Each line has the message's offset, so the file itself knows where to go on: at the line behind its last whole one.
Ends when nothing has come for a second.
"""

import os
import sys
from contextlib import closing
from pathlib import Path

from peers import FROM_THE_EARLIEST, Refused, Subscriber

if len(sys.argv) < 3:
    raise SystemExit(__doc__)
topic, path = sys.argv[1:3]
host, _, port = (sys.argv[3] if len(sys.argv) > 3 else "127.0.0.1:5560").rpartition(":")
copy = Path(path)
written = copy.read_bytes() if copy.exists() else b""
whole = written[: written.rfind(b"\n") + 1]
position = int(whole.splitlines()[-1].split(b" ")[0]) + 1 if whole else FROM_THE_EARLIEST
count = 0
try:
    with (
        closing(Subscriber((host, int(port)), topic, f"copy to {path}", position=position)) as subscriber,
        copy.open("r+b" if copy.exists() else "wb") as file,
    ):
        # A line that was torn by a crash is written anew.
        file.truncate(len(whole))
        file.seek(len(whole))
        for offset, content in subscriber.messages(idle_s=1):
            file.write(b"%d %b\n" % (offset, content))
            file.flush()
            os.fsync(file.fileno())
            count += 1
        subscriber.finish()
except TimeoutError as error:
    raise SystemExit(f"{error}: does `oncemq serve --udp` run? Started again, this goes on where it was.") from None
except Refused as error:
    raise SystemExit(f"refused: {': '.join(error.args)}") from None
print(f"{count} messages")
