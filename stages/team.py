"""The processes of one stage: who is here, which rows are whose, and sums over all of them.

Everything that differs between one process and many lies here. ``accelerate launch --cpu --num_processes 2`` starts
ONE process without a word, so the number that came is compared with the number asked for.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import nn

from elf.pipeline.errors import Failed
from elf.pipeline.stage import Compute
from elf.stages.devices import choose_device
from elf.stages.memory import set_threads

T = TypeVar("T")


class Team:
    """This process among the ``size`` of a run; ``rank`` 0 is the one that writes."""

    def __init__(self, compute: Compute) -> None:
        """Join; sets this process's threads. Raises Failed if other than ``compute.processes`` processes came."""
        self._accelerator = Accelerator(cpu=choose_device(compute.device) == "cpu", mixed_precision="no")
        self.rank, self.size = self._accelerator.process_index, self._accelerator.num_processes
        self.device: torch.device = self._accelerator.device
        if self.size != compute.processes:
            raise Failed(
                f"This stage's compute section asks for {compute.processes} processes, but {self.size} came up: this "
                "accelerate launch does not start as many here. On CPUs it takes ACCELERATE_USE_CPU=true with "
                "--multi_gpu; by accelerate_config, processes must be the num_processes of that file."
            )
        if self.device.type == "cpu" and (self.size == 1 or compute.threads is not None):
            set_threads(compute.threads)

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes files and talks."""
        return self.rank == 0

    def places(self, batch: int) -> range:
        """This process's places in a global batch of ``batch`` rows: neighbours, nobody's twice, none left out."""
        if batch < self.size:
            raise Failed(
                f"A step has {batch} rows (batch) for {self.size} processes (compute.train.processes); give each at "
                "least one row."
            )
        return range(self.rank * batch // self.size, (self.rank + 1) * batch // self.size)

    def wrap(self, module: nn.Module, *, all_used: bool) -> nn.Module:
        """The module with its gradients averaged over the processes; itself where there is one process."""
        if self.size == 1:
            return module
        devices = [self.device] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(
            module, device_ids=devices, find_unused_parameters=not all_used
        )

    def apart(self, module: nn.Module) -> AbstractContextManager[None]:
        """Inside, gradients of a module that ``wrap`` gave stay this process's own, and are added up."""
        return module.no_sync() if isinstance(module, nn.parallel.DistributedDataParallel) else nullcontext()

    def total(self, numbers: Sequence[torch.Tensor | float]) -> list[float]:
        """Each number, and each of a tensor's in order, summed over the processes, in float64; waits for the device,
        if one is asked for."""
        if self.size == 1 and not any(isinstance(number, torch.Tensor) for number in numbers):
            return [float(number) for number in numbers]
        summed = torch.cat(
            [torch.as_tensor(number, device=self.device).double().flatten() for number in numbers]
        )
        if self.size > 1:
            torch.distributed.all_reduce(summed)
        return summed.tolist()

    def add_up(self, tensors: Sequence[torch.Tensor]) -> None:
        """Each tensor summed over the processes, in place and in one exchange."""
        # Through one buffer: a transposed tensor reduced as it lies comes out wrong, without a word (gloo).
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        torch.distributed.all_reduce(flat)
        for tensor, summed in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(summed.view(tensor.shape))

    def share(self, value: T) -> T:
        """What rank 0 holds, on every process; plain data only."""
        if self.size == 1:
            return value
        held: list[Any] = [value]
        broadcast_object_list(held, from_process=0)
        return held[0]

    def gather(self, value: T) -> list[T]:
        """What each process holds, by rank, on every process; plain data only."""
        if self.size == 1:
            return [value]
        held: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(held, value)
        return held

    def meet(self) -> None:
        """Wait until every process is here."""
        self._accelerator.wait_for_everyone()

    def leave(self) -> None:
        """Take the process group down."""
        self._accelerator.end_training()


class Alone(Team):
    """One process that nobody launched: the one that plans and runs everything else too."""

    def __init__(self, compute: Compute) -> None:
        """Sets this process's threads; leaves accelerate, whose state is the whole process's, alone."""
        self.rank, self.size = 0, 1
        self.device = torch.device(choose_device(compute.device))
        set_threads(compute.threads)

    def meet(self) -> None:
        """Nobody to wait for."""

    def leave(self) -> None:
        """Nothing to take down."""


def join(compute: Compute) -> Team:
    """The team of a stage that is launched only where several processes are asked for."""
    return Team(compute) if compute.several else Alone(compute)
