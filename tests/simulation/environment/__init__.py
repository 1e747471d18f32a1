"""What surrounds the real code: virtual time, faults, disk, network, and the machines that run brokers."""
