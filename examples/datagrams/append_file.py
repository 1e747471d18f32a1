"""Append the messages of a topic to a file over datagrams, each exactly once, even if this program is killed.

    python examples/datagrams/append_file.py readings copy.txt 127.0.0.1:5560

Each line contains the offset of its message, so the program continues after the last complete line of the file. It
copies all messages that the topic has when it starts, and exits after one second without a further one. If it can't
copy them all, its exit code is 1. If the broker has users, ONCEMQ_TOKEN or ONCEMQ_TOKEN_FILE has the access token.
"""

import os
import sys
from contextlib import closing
from pathlib import Path

from peers import FROM_THE_EARLIEST, Refused, Subscriber, find_end, token_from_environment

if len(sys.argv) < 3:
    raise SystemExit(__doc__)
topic, path = sys.argv[1:3]
host, _, port = (sys.argv[3] if len(sys.argv) > 3 else "127.0.0.1:5560").rpartition(":")
copy = Path(path)
written = copy.read_bytes() if copy.exists() else b""
whole = written[: written.rfind(b"\n") + 1]
position = int(whole.splitlines()[-1].split(b" ")[0]) + 1 if whole else FROM_THE_EARLIEST
gateway, token = (host, int(port)), token_from_environment
count = 0
try:
    with (
        closing(Subscriber(gateway, topic, f"copy to {path}", position=position, access_token=token)) as subscriber,
        copy.open("r+b" if copy.exists() else "wb") as file,
    ):
        # A line that a crash left incomplete is written again.
        file.truncate(len(whole))
        file.seek(len(whole))
        end = find_end(gateway, topic, access_token=token)
        for offset, content in subscriber.messages(idle_s=1, end=end):
            file.write(b"%d %b\n" % (offset, content))
            file.flush()
            os.fsync(file.fileno())
            count += 1
        subscriber.finish()
except TimeoutError as error:
    raise SystemExit(f"{error}: is `oncemq serve --udp` running? Start this again to continue.") from None
except Refused as error:
    raise SystemExit(f"refused: {': '.join(error.args)}") from None
print(f"{count} messages")
