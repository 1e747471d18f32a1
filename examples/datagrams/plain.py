"""Plain datagrams: a packet is sent until it is acknowledged. A subscriber is identified by its address.

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


publisher = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
subscriber = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print(ask(publisher, '1 "Cooking Recipes"'))
print(ask(subscriber, "4 list"))
print(ask(subscriber, '2 "Cooking Recipes"'))
print(ask(publisher, '1 "Cooking Recipes" boil the water first'))
print(subscriber.recv(65_536).decode())
print(ask(subscriber, '3 "Cooking Recipes"'))
publisher.close()
subscriber.close()
