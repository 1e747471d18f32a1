"""Access to a disk, as an interface (contract.py) and on the operating system (os_disk.py).

It owns durable writes, durable renames and the lock of a folder. It must not know what the files hold.
"""
