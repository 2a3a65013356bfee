"""Figures of a training run and of followed texts."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from elf.stages.curves import Curve, Levels
from elf.stages.drawing import Drawing, Palette, draw, scale_log

TITLES = {
    "loss": "Training loss",
    "ce": "Decode branch: cross-entropy, nats",
    "l2": "Denoise branch: squared error",
    "nll": "Loss: nats a token",
    "nll_bound": "Loss: nats a token, a bound",
}
LEVEL_TITLES = {
    "ce": "Decode branch by noise level",
    "l2": "Denoise branch by noise level",
    "nll_bound": "Loss by the share of tokens that are left",
}
FAINTEST = 0.25
"""Opacity of the first third of training, beside that of the last."""


def draw_curve(curve: Curve) -> Drawing:
    """One part of the loss over steps."""
    label = f"{TITLES[curve.part]} over training steps"

    def paint(axes: Axes, palette: Palette) -> None:
        if curve.step.size:
            axes.fill_between(curve.step, curve.low, curve.high, color=palette.first, alpha=0.18, lw=0)
            axes.plot(curve.step, curve.mean, color=palette.first, lw=1.4)
        if curve.heldout_step.size:
            dashes = {"color": palette.second, "lw": 1.0}
            axes.plot(curve.heldout_step, curve.heldout_raw, ls=(0, (2, 2)), **dashes)
            axes.plot(curve.heldout_step, curve.heldout, marker="o", ms=2.6, **dashes)
        axes.set_title(TITLES[curve.part])
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))

    return draw(f"curve-{curve.part}", label, paint)


def draw_together(curves: Mapping[str, Curve]) -> Drawing:
    """One part of the loss of several trainings, by the names they go by."""
    parts = {curve.part for curve in curves.values()}
    part = min(parts)
    title = TITLES[part] if len(parts) == 1 else "Loss: nats a token, of masked models a bound"

    def paint(axes: Axes, palette: Palette) -> None:
        for place, (name, curve) in enumerate(curves.items()):
            colour = palette.series[place % len(palette.series)]
            axes.plot(curve.step, curve.mean, color=colour, lw=1.3, label=name)
            axes.plot(curve.heldout_step, curve.heldout, color=colour, lw=1.0, ls=(0, (3, 2)))
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.legend(frameon=False, fontsize=7.5, labelcolor=palette.ink)

    return draw(f"curves-{part}", f"{title} over training steps, by run", paint)


def draw_levels(levels: Levels) -> Drawing:
    """One branch's loss over the noise level; the later in training, the darker."""
    label = f"{LEVEL_TITLES[levels.part]}: loss over t, in the first, second and last third of training"

    def paint(axes: Axes, palette: Palette) -> None:
        scale_log(axes)
        for place, means in enumerate(levels.thirds):
            alpha = FAINTEST + (1 - FAINTEST) * place / (len(levels.thirds) - 1)
            axes.plot(levels.t, means, color=palette.first, alpha=alpha, lw=1.4, marker="o", ms=2.6)
        axes.plot(levels.t, levels.heldout, color=palette.second, lw=1.0, marker="o", ms=2.6)
        axes.set_title(LEVEL_TITLES[levels.part])
        axes.set_xlabel("t, from noise (0) to clean (1)")
        axes.set_xlim(0, 1)

    return draw(f"levels-{levels.part}", label, paint)


def draw_settled(name: str, t: Sequence[float], share: Sequence[float] | np.ndarray) -> Drawing:
    """The share of tokens of followed texts that are those of the end, over the time of sampling."""

    def paint(axes: Axes, palette: Palette) -> None:
        axes.plot(t, share, color=palette.first, lw=1.4, marker="o", ms=2.6, clip_on=False)
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, 0, " %"))
        _over_time(axes, "Tokens that are settled")

    return draw(f"settled-{name}", f"Share of settled tokens over t, setting {name}", paint)


def draw_distances(
    name: str,
    t: Sequence[float],
    *,
    x: Sequence[float] | np.ndarray,
    z: Sequence[float] | np.ndarray,
) -> Drawing:
    """How far the estimate x̂ and the state z of followed texts are from where they end, over the time of sampling."""

    def paint(axes: Axes, palette: Palette) -> None:
        axes.plot(t, z, color=palette.second, lw=1.4, marker="o", ms=2.6, clip_on=False)
        axes.plot(t, x, color=palette.first, lw=1.4, marker="o", ms=2.6, clip_on=False)
        axes.set_ylim(bottom=0)
        _over_time(axes, "Distance to the final state")

    return draw(f"distance-{name}", f"Distance to the final state over t, setting {name}", paint)


def _over_time(axes: Axes, title: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("t, from noise (0) to clean (1)")
    axes.set_xlim(0, 1)
