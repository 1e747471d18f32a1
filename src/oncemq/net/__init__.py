"""Listeners, and what protects the process from their peers: connections, memory, descriptors.

    stream/         listens for the stream transport, with the limits of its peers
    gate.py         what listeners ask about a new connection: who is it?
    tls.py          contexts of TLS, from the files of certificates
    tls_socket.py   a socket of the stream transport that is encrypted, on both sides
    system.py       what the stream transport needs from the operating system
    lookup.py       the lookup of a host's addresses, which may take long
    options.py      the options of its sockets
    poller.py       waits for many descriptors
    counters.py     counts by name, and log lines at a limited rate
    descriptors.py  the limit of open files

The rest is for ZeroMQ.

libzmq limits the number of messages that wait in a queue, and the size of a frame. It limits neither the bytes of a
queue nor the number of frames of a message, and it hands over a message only when all its frames have arrived. So this
package compares what the kernel has received from each peer, and what the peer has acknowledged, with what the listener
has read and sent, and disconnects peers that exceed their limits. A ZeroMQ client reconnects automatically.

    unix_socket.py  the mode of a Unix socket
    curve.py        keys of encrypted sockets (CURVE)
    zap.py          libzmq asks who a new connection is
    admissions.py   which connections of a listener were admitted, and have not ended
    routing_ids.py  names of peers that can't be predicted
    kernel.py       what the kernel knows about a connection and about this process
    connection.py   the account of one connection
    listener.py     the connections of one listener, and the part that the thread of the socket uses
    policy.py       who is disconnected, and why: decisions without I/O
    guard.py        the thread that watches all listeners of the process

It must not know what the messages mean.
"""
