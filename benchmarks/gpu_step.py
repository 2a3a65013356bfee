"""Training steps of ELF-B on one device, the literal algorithm's and the product's, and how far apart they are."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from measuring import Bar
from oracle import load_literal
from torch import Tensor

from elf.stages.fast_t5 import FastT5, T5Shape
from elf.stages.model.config import SIZES, ModelConfig, ObjectiveConfig
from elf.stages.model.draws import Draws, draw
from elf.stages.model.ema import Ema
from elf.stages.model.network import Network, build
from elf.stages.model.objective import loss
from elf.stages.model.optim import Muon, clip
from elf.stages.model.rows import Batch
from elf.stages.model.speeding import compile_blocks, few_rows

OBJECTIVE = ObjectiveConfig()
LITERAL_LOSS = load_literal().literal_loss
T5_SMALL = T5Shape(
    vocabulary=32128,
    width=512,
    head_width=64,
    heads=8,
    feed_forward=2048,
    layers=6,
    activation="relu",
    gated=False,
    buckets=32,
    max_distance=128,
    eps=1e-6,
)
DEPTH, HIDDEN, HEADS = SIZES["B"]
ELF_B = ModelConfig(
    width=512, vocabulary=32128, length=1024, hidden=HIDDEN, depth=DEPTH, heads=HEADS, bottleneck=128
)
TINY_T5 = replace(T5_SMALL, vocabulary=50, width=16, head_width=8, heads=2, feed_forward=32, layers=2)
TINY = ModelConfig(width=16, vocabulary=50, length=12, hidden=32, depth=2, heads=2, bottleneck=8)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to make a step."""

    side: str
    latents: str
    compiled: bool = False
    again: bool = False
    tf32: bool = False

    @property
    def blocks(self) -> str:
        marks = ["compiled" if self.compiled else "eager"]
        return "+".join(marks + ["again"] * self.again + ["tf32"] * self.tf32)


@dataclass(frozen=True, slots=True)
class Found:
    """Of a way: seconds a step, the most bytes on the device, seconds until the first timed step; or why not."""

    seconds: float = 0.0
    peak: int = 0
    begun: float = 0.0
    failed: str = ""


class Bench:
    """A network, its optimiser and a batch on one device."""

    def __init__(self, model: ModelConfig, encoder: T5Shape, rows: int, device: torch.device) -> None:
        self.model, self.rows, self.device = model, rows, device
        generator = torch.Generator().manual_seed(0)
        self.network = build(model, generator).to(device).train()
        self.optimizer = Muon(self.network.parameters(), 1e-4)
        self.ema = Ema(self.network)
        self.draws = typical(rows, model, device)
        self.ids_BL = torch.randint(model.vocabulary, (rows, model.length), generator=generator)
        self.ids_BL %= encoder.vocabulary
        raw_BLD = torch.randn(rows, model.length, model.width, generator=generator).to(torch.float16)
        self.raw_BLD = raw_BLD.pin_memory() if device.type == "cuda" else raw_BLD
        self.compiled = False
        self.encoder = random_encoder(encoder).to(device, torch.bfloat16).eval()

    def batch(self, latents: str) -> Batch:
        """Latents of the step, normalised, and their ids."""
        ids_BL = self.ids_BL.to(self.device, non_blocking=True)
        stored = latents == "stored"
        x_BLD = self.raw_BLD.to(self.device, non_blocking=True) if stored else self.encode(ids_BL)
        return Batch.unconditional(x_BLD.float(), ids_BL)

    @torch.no_grad()
    def encode(self, ids_BL: Tensor, at_once: int = 16) -> Tensor:
        parts: list[Tensor] = []
        for some in ids_BL.split(at_once):
            *_, last = self.encoder.hidden(some)
            parts.append(last)
        return torch.cat(parts)

    def step(self, way: Way) -> None:
        """One optimiser step, waiting for its loss and norm as training does."""
        self.optimizer.zero_grad(set_to_none=True)
        batch = self.batch(way.latents)
        with torch.autocast(self.device.type, torch.bfloat16):
            if way.side == "literal":
                total = LITERAL_LOSS(self.network, batch, self.draws, OBJECTIVE).total
            else:
                multiple = few_rows(self.rows) if way.compiled else 1
                total = loss(self.network, batch, self.draws, OBJECTIVE, row_multiple=multiple).total
        total.backward()
        norm = clip(self.network.parameters(), 1.0)
        if not bool(torch.isfinite(total) & torch.isfinite(norm)):
            raise RuntimeError(f"the loss is {float(total)}, the gradient norm {float(norm)}")
        self.update()

    def clip(self) -> None:
        clip(self.network.parameters(), 1.0)

    def update(self) -> None:
        self.optimizer.step()
        self.ema.update(self.network)

    def measure(self, way: Way, seconds: float) -> Found:
        """Two steps to warm up, then as many as fit the seconds, three at least."""
        began = time.perf_counter()
        with precision("high" if way.tf32 else "highest"):
            for _ in range(2):
                self.step(way)
            self.wait()
            begun = time.perf_counter() - began
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            one = self.timed(lambda: self.step(way), seconds)
        peak = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else 0
        return Found(one, peak, begun)

    def timed(self, call: Callable[[], object], seconds: float) -> float:
        """The median seconds of a call."""
        each: list[float] = []
        began = time.perf_counter()
        while len(each) < 3 or time.perf_counter() - began < seconds:
            self.wait()
            start = time.perf_counter()
            call()
            self.wait()
            each.append(time.perf_counter() - start)
        return statistics.median(each)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


@contextmanager
def precision(name: str) -> Iterator[None]:
    """How float32 matrices are multiplied, inside."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def typical(rows: int, model: ModelConfig, device: torch.device | str) -> Draws:
    """A step's draws with as many decode and self-conditioned rows as on average."""
    decoded = round(OBJECTIVE.decode_share * rows)
    coined = round((1 - OBJECTIVE.decode_share) * OBJECTIVE.self_condition * rows)
    place_B = torch.arange(rows)
    drawn = draw(
        0, 0, range(rows), length=model.length, width=model.width, objective=OBJECTIVE, device=device
    )
    coin_B = (place_B >= decoded) & (place_B < decoded + coined)
    return replace(drawn, decode_B=place_B < decoded, coin_B=coin_B)


def random_encoder(shape: T5Shape) -> FastT5:
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: torch.ones(size)
        if len(size) == 1
        else torch.randn(size, generator=generator) * size[-1] ** -0.5
        for name, size in shape.weights(shape.layers).items()
    }
    return FastT5(shape, weights, shape.layers)


def rate(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Operations a second of a square matrix product."""
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    each: list[float] = []
    for _ in range(12):
        start = time.perf_counter()
        float((left @ right)[0, 0])
        each.append(time.perf_counter() - start)
    return 2.0 * size**3 / statistics.median(each[2:])


def agreement(model: ModelConfig, device: torch.device, backend: str) -> list[Bar]:
    """A small batch in float32: the literal step on the CPU against all others here; relative errors."""
    small = replace(model, length=min(model.length, 64))
    network = build(small, torch.Generator().manual_seed(0)).train()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():  # heads begin at zero, and with them most gradients
        for parameter in network.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    rows = 5
    x_BLD = torch.randn(rows, small.length, small.width, generator=generator)
    ids_BL = torch.randint(small.vocabulary, (rows, small.length), generator=generator)
    draws = typical(rows, small, "cpu")
    want = gradients(
        network, lambda: LITERAL_LOSS(network, batch_on("cpu", x_BLD, ids_BL), draws, OBJECTIVE).total
    )
    network, there = network.to(device), batch_on(device, x_BLD, ids_BL)
    draws = on(draws, device)
    bars: list[Bar] = []

    def compare(name: str, total: Callable[[], Tensor], limits: tuple[float, float]) -> None:
        have = gradients(network, total)
        error = abs(float(have.pop("")) / float(want[""]) - 1.0)
        rest = {key: each for key, each in want.items() if key}
        far = relative_error(have, rest)
        bars.append(Bar(f"loss, {name}: relative error", error, limits[0], at_most=True))
        bars.append(Bar(f"gradients, {name}: relative error", far, limits[1], at_most=True))

    def product() -> Tensor:
        return loss(network, there, draws, OBJECTIVE).total

    def half() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return product()

    compare("literal", lambda: LITERAL_LOSS(network, there, draws, OBJECTIVE).total, (1e-5, 1e-4))
    compare("product", product, (1e-5, 1e-4))
    compare("product, bf16", half, (1e-2, 0.1))
    compile_blocks(network, backend=backend)
    compare("product, compiled", product, (1e-5, 1e-4))
    return bars


def relative_error(have: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    """Of all gradients as one vector."""
    apart = sum(float((have[name] - want[name]).double().square().sum()) for name in want)
    return (apart / sum(float(each.double().square().sum()) for each in want.values())) ** 0.5


def batch_on(device: torch.device | str, x_BLD: Tensor, ids_BL: Tensor) -> Batch:
    return Batch.unconditional(x_BLD.to(device), ids_BL.to(device))


def on(draws: Draws, device: torch.device) -> Draws:
    moved = ("t_B", "noise_BLD", "guidance_B", "decode_t_BL", "decode_noise_BLD")
    return replace(draws, **{name: getattr(draws, name).to(device) for name in moved})


def gradients(network: Network, total: Callable[[], Tensor]) -> dict[str, Tensor]:
    """The gradients by name, on the CPU, and the loss as ""."""
    network.zero_grad(set_to_none=True)
    value = total()
    value.backward()
    found = {name: each.grad.cpu() for name, each in network.named_parameters() if each.grad is not None}
    return {"": value.detach().cpu()} | found
