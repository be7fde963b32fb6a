from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from policyc.compiler.allocator import keep_freed_memory

PROGRAM = """
import resource
import threading
import numpy as np
from policyc.compiler.allocator import keep_freed_memory

def faults_of_ten_tensors() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        np.empty(1 << 26, np.uint8).fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert keep_freed_memory()
faults_of_ten_tensors()
found = [faults_of_ten_tensors()]
thread = threading.Thread(target=lambda: found.append(faults_of_ten_tensors()))
thread.start()
thread.join()
print(*found)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")
def test_the_next_tensor_takes_no_fresh_pages() -> None:
    """Ten tensors of 64 MiB in turn, in the main thread and in another; in a process of its own."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    main, other = map(int, done.stdout.split())
    assert main < 100 and other < 100


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert keep_freed_memory() is False
