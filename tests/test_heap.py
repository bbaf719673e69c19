"""Memory that is freed is there for the next pass."""

import os
import subprocess
import sys

import pytest

TEN_PASSES = """
import ctypes, resource, sys
from antiphase.processes import keep_freed_memory
if "keep" in sys.argv:
    keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def once():
    taken = [libc.malloc(40 << 20) for _ in range(2)]
    for each in taken:
        ctypes.memset(each, 1, 40 << 20)
    for each in taken:
        libc.free(each)
once()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    once()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(*arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-c", TEN_PASSES, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's thresholds: on Linux only")
def test_the_second_pass_finds_the_memory_of_the_first():
    if _faults() < 100:
        pytest.skip("this C library keeps what is freed as it is")
    assert _faults("keep") < 100
    assert _faults("keep", MALLOC_TRIM_THRESHOLD_="131072") > 100  # the user's own word counts
