"""Which share of the work this process does, under torchrun or alone."""

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from antiphase.torchrun import rank_and_count

Item = TypeVar("Item")


@dataclass(frozen=True)
class Process:
    """Process ``rank`` of ``count``."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes what belongs to all."""
        return self.rank == 0

    def share(self, items: list[Item]) -> list[Item]:
        """Return those of the items that this process works on."""
        return items[self.rank :: self.count]

    def wait(self) -> None:
        """Return when every process has come this far."""
        if self.count > 1:
            from accelerate import PartialState

            PartialState().wait_for_everyone()


def this_process() -> Process:
    """Return this process among those that torchrun or ``accelerate launch`` started, else the only one."""
    if rank_and_count()[1] == 1:
        return Process()
    import torch
    from accelerate import PartialState

    from antiphase.training.processes import end_group_at_exit

    end_group_at_exit()
    # a process that has less to do waits for the others, however long
    state = PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(days=7))
    return Process(state.process_index, state.num_processes)
