"""Freed memory: kept while work is done, given back afterwards."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from fedseal.core.allocator import freed_memory_kept

GLIBC = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt")
GLIBC_ONLY = pytest.mark.skipif(not GLIBC, reason="only glibc can be asked to keep memory")


def run(code: str) -> None:
    """Run it in a process that has used its memory for nothing else."""
    head = "import resource, torch\nfrom fedseal.core.allocator import freed_memory_kept\n"
    subprocess.run([sys.executable, "-c", head + code], check=True)


@GLIBC_ONLY
def test_arrays_that_come_and_go_take_no_fresh_pages() -> None:
    """Of 46 MiB, which glibc does not keep by itself."""
    run("""
def faults():
    for _ in range(20):  # until the heap has settled
        torch.ones(12_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(12_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
fresh = faults()
with freed_memory_kept():
    kept = faults()
assert kept < fresh / 20, (kept, fresh)
""")


@GLIBC_ONLY
def test_memory_goes_back_afterwards() -> None:
    run("""
def held():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before = held()
with freed_memory_kept():
    torch.ones(50_000_000)
    assert held() > before + 150_000_000
assert held() < before + 50_000_000, held() - before
""")


def test_an_error_inside_comes_out() -> None:
    with pytest.raises(ArithmeticError), freed_memory_kept():
        raise ArithmeticError("as it is")
