"""Faults for real processes: kills at named functions and system calls, and a disk that loses unsynced data."""
