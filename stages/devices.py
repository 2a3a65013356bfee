"""Where tensors are computed."""

import torch

from elf.pipeline.errors import Failed


def choose_device(wanted: str) -> str:
    """`cuda` or `cpu` for the setting `auto`, `cpu` or `cuda`; Failed where a GPU is asked for and none is there."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise Failed(
            "compute.device is cuda, but torch finds no CUDA device here; set it to auto or cpu, or install a CUDA "
            "build of torch where there is a GPU."
        )
    return wanted
