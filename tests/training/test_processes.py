"""The processes of a run come to a good end."""

import subprocess
import sys

import pytest

# The worst case, made sure: a thread of the group wants the interpreter's lock to give a tensor back, does not get it
# before the interpreter ends (the last exit handler keeps it), and gets it while the modules are taken down.
ENDING = """
import atexit, sys, time

def keep_the_lock(until=time.monotonic):
    end = until() + 1
    while until() < end:
        pass

class Pause:
    def __del__(self, sleep=time.sleep):
        sleep(0.5)

atexit.register(keep_the_lock)
sys.modules["pause"] = Pause()
import torch
import torch.distributed as dist
from {module} import {start}

{start}()
dist.barrier()
time.sleep(dist.get_rank())
sys.setswitchinterval(100)
dist.all_reduce(torch.ones(1000), async_op=True)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("module", "start"),
    [
        ("antiphase.processes", "start_processes"),
        pytest.param("antiphase.processes", "this_process", marks=pytest.mark.thorough),
    ],
)
def test_a_process_whose_group_still_holds_a_tensor_ends_well(tmp_path, module, start):
    script = tmp_path / "ending.py"
    script.write_text(ENDING.format(module=module, start=start))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.run([*torchrun, str(script)], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
