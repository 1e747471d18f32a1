"""Memory of a process that handles large batches."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import resource
from oncemq.config.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        bytes(4_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert keep_freed_memory()
faults()
print(faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="an option of the GNU C library")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1_000, "each of the 50 blocks has about 1,000 pages"
