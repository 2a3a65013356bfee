"""A token by one number: the frequencies that come of it are the probabilities, cut and sharpened as asked."""

from typing import Any

import pytest
import torch

from elf.stages.model.choosing import choose
from elf.stages.model.token_config import TokenSamplerConfig

SHARES = torch.tensor([0.1, 0.5, 0.15, 0.25], dtype=torch.float64)


def frequencies(config: TokenSamplerConfig, points: int = 4000) -> list[float]:
    choices = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    chosen = choose(SHARES.log().expand(points, -1), choices, config)
    return (torch.bincount(chosen, minlength=4) / points).tolist()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.1, 0.5, 0.15, 0.25]),
        ({"temperature": 0.5}, [0.01 / 0.345, 0.25 / 0.345, 0.0225 / 0.345, 0.0625 / 0.345]),
        ({"temperature": 0.0}, [0, 1, 0, 0]),
        ({"top_p": 0.5}, [0, 1, 0, 0]),
        ({"top_p": 0.51}, [0, 2 / 3, 0, 1 / 3]),
        ({"top_p": 0.76}, [0, 0.5 / 0.9, 0.15 / 0.9, 0.25 / 0.9]),
    ],
)
def test_a_number_chooses_by_the_cumulated_probabilities(settings: dict[str, Any], expected: list[float]):
    assert frequencies(TokenSamplerConfig("autoregressive", **settings)) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("temperature", [1e-100, 1e-300, 1e-308, 5e-324])
def test_next_to_no_temperature_chooses_the_most_probable(temperature: float) -> None:
    """Also where a logit over the temperature is no number of float64."""
    config = TokenSamplerConfig("autoregressive", temperature=temperature)
    assert frequencies(config, points=10) == [0, 1, 0, 0]
    large = torch.tensor([[-3e38, 3e38, 2.9e38]]).expand(10, -1)
    choices = torch.arange(10) / 10
    assert choose(large, choices, config).tolist() == [1] * 10
    assert choose(-large, choices, config).tolist() == [0] * 10


def test_the_ends_of_the_interval_choose_tokens_that_may_come() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf]]).nan_to_num(neginf=-1e9).expand(2, -1)
    almost = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert choose(logits, almost, TokenSamplerConfig("autoregressive")).tolist() == [1, 1]


def test_logits_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        choose(torch.full((1, 3), torch.nan), torch.zeros(1), TokenSamplerConfig("autoregressive"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "masked"}, "needs at least 1 step"),
        ({"method": "autoregressive", "steps": 3}, "as many as there are tokens"),
        ({"method": "autoregressive", "top_p": 0.0}, "top_p is 0.0; it must be above 0"),
        ({"method": "autoregressive", "temperature": -1.0}, "must be 0 or more"),
        ({"method": "ode"}, "must be one of 'autoregressive', 'masked'"),
    ],
)
def test_samplers_without_a_meaning_are_refused(settings: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TokenSamplerConfig(**settings)  # pyright: ignore[reportArgumentType]
