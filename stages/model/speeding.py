"""Two ways to run a network that change no number, rounding apart: compiled blocks, and blocks computed again.

Blocks are compiled one by one: all of them run the same code, so that torch compiles one for every shape, mode and
precision it meets, in seconds, however deep the network. In place (`nn.Module.compile`): parameters keep their names,
and weights that change in place (the optimiser, the average) need nothing new. What stays eager around them, the
float32 projections and heads, takes a row count as it comes.
"""

# torch's settings of its compiler are public by use, private by name.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

import math
import sys
from contextlib import AbstractContextManager, nullcontext

import torch

from elf.stages.model.network import Network
from elf.stages.model.token_network import TokenNetwork

SHAPES = 64
"""Compiled forms of a block that are kept: about ten shapes, with and without gradient, dropout and evaluation."""


def compile_blocks(network: Network | TokenNetwork, *, backend: str = "inductor") -> None:
    """Have every block compiled when it is first called, for fixed shapes: see `few_rows`."""
    from torch._dynamo import config  # seconds to import, and most runs on CPUs do without

    config.recompile_limit = max(config.recompile_limit, SHAPES)
    # A block is small enough for gradients to be exchanged block by block; cut in pieces by DDP's buckets, its
    # forward pass would differ from the one that checkpointing makes again in the backward pass.
    config.optimize_ddp = False
    # Dropout draws what it draws without the compiler.
    options = {"fallback_random": True} if backend == "inductor" else None
    for trunk in network.trunks:
        for block in trunk.blocks:
            block.compile(  # pyright: ignore[reportUnknownMemberType]
                backend=backend, dynamic=False, options=options
            )


def uncompiled() -> AbstractContextManager[object]:
    """In here, blocks run as they are: those compiled for a batch are not compiled anew for a few rows."""
    if "torch._dynamo" not in sys.modules:  # seconds to import, and without it nothing was compiled
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def checkpoint_blocks(network: Network | TokenNetwork) -> None:
    """Keep the blocks' inputs only, and compute each block again in the backward pass."""
    for trunk in network.trunks:
        trunk.checkpointing = True


def few_rows(rows: int) -> int:
    """The multiple that a chosen part of so many rows is padded to: the power of two at or below √rows.

    A number of rows drawn one by one spreads over a few √rows, hence over a handful of multiples; the padding is half
    a multiple on average.
    """
    return 1 << int(math.log2(math.sqrt(max(rows, 1))))
