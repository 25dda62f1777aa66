"""Freed memory that the next step reuses without asking the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
from adadepth.runtime.distributed import set_malloc_thresholds
if sys.argv[1] == "keep":
    set_malloc_thresholds()
def step():
    blocks = [b"x" * (3 << 20) for _ in range(12)]
step(), step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone is told")
def test_a_repeated_step_causes_no_page_faults():
    faults_without, faults_with = (
        int(subprocess.run([sys.executable, "-c", FAULTS, how], check=True, capture_output=True, text=True).stdout)
        for how in ("leave", "keep")
    )
    assert faults_with < 100 < faults_without
