"""Executors: run a study in this process, in several local processes, or on a cluster under SLURM.

An executor starts workers that run the same cells on the same store; each takes cells that are free. torchrun needs no
executor: its processes share every cell.
"""

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from antiphase.errors import UserError, first_line
from antiphase.terminal import say

_GRACE_SECONDS = 20.0


@final
@dataclass(frozen=True)
class Local:
    """Local processes, each with a share of the cores and, if there are several GPUs, its own GPU.

    Attributes:
        here: the work of this process, which is one of the workers.
    """

    here: Callable[[], Any]

    def __call__(self, command: Sequence[str], workers: int) -> None:
        """Start all other workers, run as the last one, and wait for the others."""
        import torch

        cores = max(1, len(os.sched_getaffinity(0)) // workers)
        gpus = torch.cuda.device_count()
        seen = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))).split(",")
        others = []
        for number in range(1, workers):
            threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(cores)}
            device = {"CUDA_VISIBLE_DEVICES": seen[number % gpus]} if gpus > 1 else {}
            others.append(subprocess.Popen(list(command), env={**os.environ, **threads, **device}))
        try:
            if workers > 1:
                torch.set_num_threads(min(torch.get_num_threads(), cores))
            self.here()
            codes = [other.wait() for other in others]
        except BaseException:
            _stop(others)
            raise
        if any(codes):
            raise UserError(f"a worker ended with code {max(codes)}; resume with the same command")


def _stop(processes: Sequence[subprocess.Popen]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


@final
@dataclass(frozen=True)
class Slurm:
    """Cluster jobs, submitted with submitit.

    Attributes:
        folder: folder for submitit's files on a shared disk, usually that of the store.
        settings: arguments of ``AutoExecutor.update_parameters``: ``timeout_min``, ``slurm_partition``, ….
        cluster: ``"slurm"``, or ``"local"`` to run the jobs on this machine for testing.
        wait: whether to return only when all jobs have finished.
    """

    folder: Path
    settings: dict[str, Any]
    cluster: str = "slurm"
    wait: bool = False

    def __call__(self, command: Sequence[str], workers: int) -> None:
        """Submit one job per worker."""
        try:
            import submitit
        except ImportError:
            raise UserError("--executor slurm needs submitit: pip install 'antiphase[slurm]'") from None
        try:
            executor = submitit.AutoExecutor(folder=self.folder, cluster=self.cluster)
            executor.update_parameters(name="antiphase", **self.settings)
            run = submitit.helpers.CommandFunction(list(command), verbose=False)
            with executor.batch():
                jobs = [executor.submit(run) for _ in range(workers)]
        except (RuntimeError, NameError, ValueError, OSError) as error:
            raise UserError(f"--executor slurm: {first_line(error)}") from None
        say(
            f"jobs {', '.join(job.job_id for job in jobs)}; follow them with antiphase study status", err=True
        )
        if self.wait:
            for job in jobs:
                job.result()


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Parse ``name=value`` settings; integers become numbers.

    Raises:
        UserError: A setting has no "=".

    >>> parse_settings(["timeout_min=240", "slurm_partition=gpu"])
    {'timeout_min': 240, 'slurm_partition': 'gpu'}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise UserError(f"--slurm {text!r}: expected name=value, such as timeout_min=240")
        found[name] = int(value) if value.lstrip("-").isdigit() else value
    return found
