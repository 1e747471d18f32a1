"""Publishers: plain PUB sockets, and reliable ones whose messages are numbered."""
