"""Giving up: at once, once, and through whatever is running."""

import os
import signal

import pytest
import torch

from elf.stages.stopping import GivenUp, StopWish


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_work_is_given_up_at_once_and_only_there() -> None:
    done: list[str] = []

    def work() -> None:
        interrupt()
        done.append("the rest of it")

    with StopWish() as wish:
        with pytest.raises(GivenUp), wish.giving_up(alone=True):
            work()
        interrupt()  # once more, outside: a wish and no more
        done.append("saved")
    assert done == ["saved"]
    assert wish.stop


def test_a_wish_from_before_is_heard_where_work_begins() -> None:
    with StopWish() as wish:
        interrupt()
        with pytest.raises(GivenUp), wish.giving_up(alone=True):
            raise AssertionError("it began")


def test_one_of_several_goes_on() -> None:
    with StopWish() as wish, wish.giving_up(alone=False):
        interrupt()
        assert wish.stop


@pytest.mark.slow
def test_a_compiler_does_not_turn_it_into_a_fault_of_its_own() -> None:
    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        interrupt()
        return graph

    compiled = torch.compile(lambda x: x + 1, backend=backend)
    with StopWish() as wish, pytest.raises(GivenUp), wish.giving_up(alone=True):
        compiled(torch.ones(2))
