"""The journal in files: segments of groups, snapshots, recovery, and the tools that check, export and cut a journal.

It uses a disk only through the interface in oncemq.disk, so that tests and the simulator can damage unsynced data.
"""
