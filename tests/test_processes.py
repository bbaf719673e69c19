"""What torchrun says in the environment is checked, and its processes end with it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from antiphase.errors import UserError
from antiphase.processes import rank_and_count

GROUP = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture
def environment(monkeypatch):
    """Return a function that sets these variables and no others of torchrun's."""

    def be(values):
        for name in (*GROUP, "TORCHELASTIC_RUN_ID"):
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return be


@pytest.mark.parametrize(
    ("values", "expected"),
    [({}, (0, 1)), ({"WORLD_SIZE": "1", "RANK": "0"}, (0, 1)), (GROUP, (1, 2)), ({**GROUP, "LOCAL_RANK": "0"}, (1, 2))],
)
def test_rank_and_count_are_those_of_the_environment(environment, values, expected):
    environment(values)
    assert rank_and_count() == expected


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE 'abc' in the environment: expected an integer from 1 to"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE '0'"),
        ({"WORLD_SIZE": "9" * 5000}, "WORLD_SIZE '999"),
        ({"RANK": "3"}, "RANK '3' in the environment: expected 0, as torchrun sets it"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK '-1'"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE 2 without RANK: start with torchrun"),
        ({**GROUP, "RANK": "2"}, "RANK '2' in the environment: expected an integer from 0 to 1"),
        ({**GROUP, "RANK": "01"}, "RANK '01'"),
        ({**GROUP, "MASTER_PORT": "http"}, "MASTER_PORT 'http'"),
    ],
)
def test_an_environment_without_sense_is_refused(environment, values, told):
    environment(values)
    with pytest.raises(UserError, match=told):
        rank_and_count()


def test_a_command_names_the_variable_in_one_line(environment, run_cli):
    environment({"WORLD_SIZE": "1.5"})
    code, printed, told = run_cli("doctor")
    assert (code, printed) == (2, "")
    assert told.startswith("antiphase: WORLD_SIZE '1.5'")
    assert told.count("\n") == 1


AGENT = """
import subprocess, sys, time

subprocess.Popen([sys.executable, "-c", {code!r}])
time.sleep(60)
"""
WORKER = """
import os, time
from antiphase.processes import rank_and_count
rank_and_count()
print(os.getpid(), flush=True)
time.sleep(60)
"""


def _ended(process):
    status = Path(f"/proc/{process}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_process_ends_when_torchrun_is_killed():
    code = AGENT.format(code=WORKER)
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **GROUP, "TORCHELASTIC_RUN_ID": "none"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as agent:
        worker = int(agent.stdout.readline())
        assert not _ended(worker)
        agent.kill()
        until = time.monotonic() + 30
        while not _ended(worker) and time.monotonic() < until:
            time.sleep(0.05)
        assert _ended(worker)
        assert "torchrun has ended" in agent.stderr.read()


def test_a_process_whose_torchrun_is_gone_already_does_not_begin():
    agent = {**GROUP, "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    process = subprocess.run(
        [sys.executable, "-m", "antiphase", "doctor"], env={**os.environ, **agent}, capture_output=True, text=True
    )
    assert process.returncode == 2
    assert process.stderr == "antiphase: torchrun on 127.0.0.1:1 has ended; start it again\n"


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
        [sys.executable, "-c", TEN_PASSES, *arguments], env=os.environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's thresholds: on Linux only")
def test_the_second_pass_finds_the_memory_of_the_first():
    if _faults() < 100:
        pytest.skip("this C library keeps what is freed as it is")
    assert _faults("keep") < 100
    assert _faults("keep", MALLOC_TRIM_THRESHOLD_="131072") > 100  # the user's own word counts
