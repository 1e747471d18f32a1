"""Plain datagrams: a packet is sent until it is acknowledged. A subscriber is identified by its address.

`Acknowledged!` does not say which packet it is for. So each message is sent from a socket of its own: a late reply to
an earlier message can't be taken for its acknowledgement.

python examples/datagrams/plain.py 127.0.0.1:5560
"""

import socket
import sys

if sys.argv[1:2] and ":" not in sys.argv[1]:
    raise SystemExit(__doc__)
host, _, port = (sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:5560").rpartition(":")
gateway = (host, int(port))


def ask(sock: socket.socket, packet: str) -> str:
    """Send a packet every second until there is a reply."""
    sock.settimeout(1)
    for _ in range(30):
        sock.sendto(packet.encode(), gateway)
        try:
            return sock.recv(65_536).decode()
        except TimeoutError:
            continue
    raise SystemExit("the gateway seems to be offline")


def publish(packet: str) -> str:
    """Send a packet from a new port until there is a reply."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return ask(sock, packet)


subscriber = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print(publish('1 "Cooking Recipes"'))
print(ask(subscriber, "4 list"))
print(ask(subscriber, '2 "Cooking Recipes"'))
print(publish('1 "Cooking Recipes" boil the water first'))
print(subscriber.recv(65_536).decode())
print(ask(subscriber, '3 "Cooking Recipes"'))
subscriber.close()
