"""Figures of a run as PNG files, drawn from the files of its directory. The only module that imports matplotlib."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from adadepth.analysis.architecture.plots import draw_comparison, draw_frame, draw_gates, search_history
from adadepth.analysis.exits.plots import draw_exit_rules, draw_steps
from adadepth.analysis.files import RunFiles, depth_histograms, loss_curves, read_run, run_unit, series
from adadepth.analysis.layers.distribution import layer_history
from adadepth.analysis.layers.sections import BLOCKS
from adadepth.analysis.measure.budgets import drawn_quality, quality_points
from adadepth.analysis.render.charts import thin
from adadepth.analysis.render.class_plots import depth_axis, draw_depth_by_class
from adadepth.analysis.render.colors import GRID, INK, LINES, MUTED, ramp
from adadepth.analysis.render.difficulty import difficulty_curves
from adadepth.analysis.render.grid_plots import draw_grids
from adadepth.analysis.render.grid_sections import grids_of
from adadepth.analysis.render.ragged_plot import draw_speedup_points
from adadepth.analysis.render.sections import (
    BUDGET_AXES,
    budget_curves,
    cosine_curves,
    curve,
    curve_classes,
    loss_by_depth_title,
    loss_title,
    loss_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = "figures"
_MAX_FRAMES, _FRAME_MILLISECONDS = 60, 250  # of the film
_STYLES = ("-", "--", ":", "-.", (0, (4, 2)), (0, (8, 2)))
_SETTINGS: Any = {
    "font.size": 10, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.edgecolor": MUTED, "axes.labelcolor": INK, "text.color": INK, "xtick.color": MUTED, "ytick.color": MUTED,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y", "grid.color": GRID,
    "axes.axisbelow": True, "lines.linewidth": 1.8, "lines.markersize": 4, "legend.frameon": False,
    "savefig.dpi": 150, "figure.constrained_layout.use": True, "figure.constrained_layout.w_pad": 0.1,
    "figure.constrained_layout.h_pad": 0.08,
}  # fmt: skip


def draw_figures(run_directory: Path) -> list[Path]:
    """Draw every figure that the run's files have numbers for into `figures/`.

    Returns:
        The files drawn: of depth_by_class, depth_over_training, halting, cosine, losses, exits and exit_rules (.png);
        where the data know a difficulty, difficulty; of each evaluated set of grids, grids_NAME;
        where a whole task has one depth, of layers and losses; of an architecture, gates, architectures and losses, and
        gates.gif, the search as a film.
    """
    files = read_run(run_directory)
    pictures = {run_directory / FIGURES / f"{name}.png": draw for name, draw in _drawings(files).items()}
    drawn = [path for path, draw in pictures.items() if _draw(path, draw, files)]
    film = run_directory / FIGURES / "gates.gif"
    return [*drawn, film] if _draw_film(film, thin(search_history(files), _MAX_FRAMES)) else drawn


def draw_gate_frame(path: Path, described: Mapping[str, Any], step: int) -> None:
    """Draw the probabilities of every block at one evaluation into a PNG file.

    Args:
        path: The file; missing folders are made.
        described: From `describe_architecture`.
        step: Optimiser steps done.
    """
    _draw(path, draw_frame, described, step)


def draw_speedups(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw the speed-ups that `benchmarks/ragged_execution.py` measured into a PNG file.

    Args:
        path: The file; missing folders are made.
        rows: Those of its JSON, the ragged execution among them.
    """
    _draw(path, draw_speedup_points, rows)


def _draw(path: Path, draw: Callable[..., bool], *content: Any) -> bool:
    """Draw a PNG file, unless there is nothing to draw; a reader never sees half of it."""
    with _new_figure() as figure:
        if not draw(figure, *content):
            return False
        with _replacing(path) as temporary:
            figure.savefig(temporary, format="png")
    return True


def _draw_film(path: Path, history: Sequence[tuple[int, Mapping[str, Any]]]) -> bool:
    """Draw a GIF file with a frame for every evaluation; a single one makes no film."""
    from PIL import Image

    if len(history) < 2:
        return False
    frames = []
    with _new_figure() as figure, _replacing(path) as temporary:
        figure.set_dpi(80)
        for step, described in history:
            draw_frame(figure, described, step)
            cast(Any, figure.canvas).draw()
            figure.set_layout_engine("none")  # that of the first frame is the layout of all
            frames.append(Image.fromarray(np.array(cast(Any, figure.canvas).buffer_rgba())).convert("RGB"))
        frames[0].save(temporary, "GIF", save_all=True, append_images=frames[1:], duration=_FRAME_MILLISECONDS, loop=0)
    return True


@contextmanager
def _new_figure() -> Iterator[Figure]:
    """An empty figure in this project's style."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        figure = Figure()
        FigureCanvasAgg(figure)
        yield figure


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file beside `path`, of the same kind, that takes its place at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _depth_over_training(figure: Figure, files: RunFiles) -> bool:
    """Shares of depths at every evaluation, and the mean depth of the classes."""
    histograms = depth_histograms(files.metrics)
    if not histograms:
        return False
    shares = [(step, [count / sum(counts) for count in counts[1:]]) for step, counts in histograms]
    max_depth = len(shares[0][1])
    figure.set_size_inches(12, 4.2)
    left, right = figure.subplots(1, 2)
    _heat_map(left, shares, "share (%)")
    left.set(title="Share of each depth", ylabel="depth (updates)")
    _lines(right, [(name, series(files.metrics, f"halting/{name}/mean")) for name in curve_classes(files)])
    right.set(title="Mean depth by class", xlabel="optimiser step", ylabel="mean depth (updates)")
    depth_axis(right, max_depth, "y")
    return True


def _halting(figure: Figure, files: RunFiles) -> bool:
    """Survival with halting probability, and loss, by depth."""
    steps = files.halting.get("steps", [])
    shares, losses = curve(steps, "depth", "share"), curve(steps, "depth", "loss")
    if not shares:
        return False
    unit, max_depth = files.halting["unit"], files.halting["max_depth"]
    figure.set_size_inches(12 if losses else 6, 3.9)
    panels = figure.subplots(1, 2 if losses else 1, squeeze=False).flatten()
    panels[0].bar(*zip(*shares, strict=True), color=ramp(0.3), label=f"{unit}s that halt at k")
    survival, probability = curve(steps, "depth", "survival"), curve(steps, "depth", "probability")
    _lines(panels[0], [(f"{unit}s that run iteration k", survival), ("mean halting probability of those", probability)])
    panels[0].set(title="Halting by iteration", xlabel="iteration k", ylabel="share or probability", ylim=(0, 1.03))
    if losses:
        _lines(panels[1], [("", losses)])
        panels[1].set(title="Mean loss by depth", xlabel="depth (updates)", ylabel=loss_by_depth_title(unit))
    for axes in panels:
        depth_axis(axes, max_depth)
    return True


def _cosine(figure: Figure, files: RunFiles) -> bool:
    """Similarity of the state before and after each iteration, in both versions."""
    versions = cosine_curves(files.halting)
    if not any(points for curves in versions.values() for _, points in curves):
        return False
    figure.set_size_inches(12, 4.1)
    figure.suptitle("Cosine similarity of the state before and after each iteration", x=0.01, ha="left", weight="bold")
    for axes, (title, curves) in zip(figure.subplots(1, 2, sharey=True), versions.items(), strict=True):
        _lines(axes, curves)
        axes.set(title=title, xlabel="iteration k", ylabel="mean cosine similarity")
        axes.title.set_fontweight("normal")
        depth_axis(axes, files.halting["max_depth"])
    return True


def _losses(figure: Figure, files: RunFiles) -> bool:
    """Every loss over training, training and evaluation in one panel."""
    curves = loss_curves(files.metrics)
    if not curves:
        return False
    figure.set_size_inches(min(4.2 * len(curves), 16), 3.6)
    for axes, (name, lines) in zip(
        figure.subplots(1, len(curves), squeeze=False).flatten(), curves.items(), strict=True
    ):
        _lines(axes, lines)
        axes.set(title=loss_title(name), xlabel="optimiser step", ylabel=loss_unit(name))
    return True


def _budget(figure: Figure, files: RunFiles) -> bool:
    """How the budget of a training was held."""
    curves = budget_curves(files.metrics)
    if not curves:
        return False
    figure.set_size_inches(6 * len(curves), 3.8)
    panels = figure.subplots(1, len(curves), squeeze=False).flatten()
    for axes, (title, lines) in zip(panels, curves.items(), strict=True):
        _lines(axes, lines)
        axes.set(title=title, xlabel="optimiser step", ylabel=BUDGET_AXES[title])
    return True


def _targets(figure: Figure, files: RunFiles) -> bool:
    """Quality against depth of one checkpoint whose depth was set to several targets."""
    points = quality_points(files.budgets) if files.budgets else []
    if not points:
        return False
    name = str(drawn_quality(files.budgets))
    figure.set_size_inches(6, 3.8)
    axes = figure.subplots()
    _lines(axes, [("", points)])
    axes.set(title=f"{loss_title(name)} against depth", xlabel=f"mean depth ({files.budgets['unit']})")
    axes.set_ylabel(name.replace("_", " "))
    return True


def _difficulty(figure: Figure, files: RunFiles) -> bool:
    """Mean depth and accuracy by difficulty, a curve for every evaluated set."""
    means, accuracies = (difficulty_curves(files.halting, key) for key in ("mean", "accuracy"))
    if not means:
        return False
    figure.set_size_inches(12 if accuracies else 6, 3.9)
    panels = figure.subplots(1, 2 if accuracies else 1, squeeze=False).flatten()
    _lines(panels[0], means)
    panels[0].set(title="Mean depth by difficulty", xlabel="difficulty", ylabel="mean depth (updates)")
    depth_axis(panels[0], files.halting["max_depth"], "y")
    if accuracies:
        _lines(panels[1], [(name, [(x, 100 * y) for x, y in points]) for name, points in accuracies])
        panels[1].set(title="Accuracy by difficulty", xlabel="difficulty", ylabel="accuracy (%)", ylim=(0, 103))
    return True


def _layers(figure: Figure, files: RunFiles) -> bool:
    """The weight of each state after the last evaluation, and at every evaluation."""
    layers = files.halting.get("layers")
    if layers is None:
        return False
    percent = [100 * weight for weight in layers["weights"]]
    blocks, history = len(percent) - 1, layer_history(files.metrics)
    figure.set_size_inches(12 if history else 6, 4.2)
    panels = figure.subplots(1, 2 if history else 1, squeeze=False).flatten()
    bars = panels[0].bar(range(blocks + 1), percent, color=ramp(0.75), width=0.85)
    labels = [f"{weight:.1f}" if weight else "" for weight in percent]
    panels[0].bar_label(bars, labels, fontsize=8, padding=2, rotation=90 if blocks > 12 else 0)
    panels[0].set(xlabel=BLOCKS, ylabel="weight (%)", ylim=(0, 1.15 * max(percent)))
    panels[0].set_title(
        f"Weight of each state: {layers['deepest']} of {blocks} blocks must run,\n"
        f"expected depth {layers['expected_depth']:.2f}, entropy {layers['entropy']:.2f} nats"
    )
    depth_axis(panels[0], blocks, first=0)
    if history:
        _heat_map(panels[1], [(step, found["weights"]) for step, found in history], "weight (%)", first=0)
        panels[1].set(title="Weights over training", ylabel=BLOCKS)
    return True


def _gates(figure: Figure, files: RunFiles) -> bool:
    return draw_gates(figure, files, _heat_map)


_DRAWINGS: dict[str, Callable[[Figure, RunFiles], bool]] = {
    "depth_by_class": draw_depth_by_class,
    "depth_over_training": _depth_over_training,
    "halting": _halting,
    "cosine": _cosine,
    "losses": _losses,
    "budget": _budget,
    "budgets": _targets,
    "exits": draw_steps,
    "exit_rules": draw_exit_rules,
    "difficulty": _difficulty,
}
# One depth for the whole task: nothing halts.
_TASK_DRAWINGS = {"layers": _layers, "losses": _losses, "budget": _budget, "budgets": _targets}
_ARCHITECTURE_DRAWINGS = {"gates": _gates, "architectures": draw_comparison, "losses": _losses, "budget": _budget}


def _drawings(files: RunFiles) -> Mapping[str, Callable[[Figure, RunFiles], bool]]:
    """By name what can be drawn of such a run."""
    drawings = {"task": _TASK_DRAWINGS, "architecture": _ARCHITECTURE_DRAWINGS}.get(run_unit(files), _DRAWINGS)
    return {**drawings, **{f"grids_{name}": partial(draw_grids, name=name) for name in grids_of(files)}}


def _lines(axes: Axes, curves: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> None:
    """Curves told apart by colour and dashes; markers where there are few points."""
    for index, (name, points) in enumerate(curves):
        if points:
            marker = "o" if len(points) <= 30 else ""
            style, color = _STYLES[index % len(_STYLES)], LINES[index % len(LINES)]
            axes.plot(*zip(*points, strict=True), linestyle=style, color=color, marker=marker, label=name)
    if any(name for name, points in curves if points):
        axes.legend(fontsize=9)


def _heat_map(axes: Axes, columns: Sequence[tuple[int, Sequence[float]]], label: str, first: int = 1) -> None:
    """Shares of the depths from `first` at the steps of `columns`, with their scale."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    last = first + len(columns[0][1]) - 1
    blues = LinearSegmentedColormap.from_list("depth", ["#ffffff", *(ramp(step / 8) for step in range(9))])
    percent = [[100 * share for share in shares] for _, shares in columns]
    mesh = axes.pcolormesh(
        _edges([step for step, _ in columns]),
        _edges(range(first, last + 1)),
        list(zip(*percent, strict=True)),
        cmap=blues,
        norm=PowerNorm(0.5, 0, 100),
    )
    bar = cast(Any, axes.figure).colorbar(mesh, ax=axes, ticks=[0, 1, 5, 10, 25, 50, 100], label=label, pad=0.02)
    bar.outline.set_visible(False)
    axes.set_xlabel("optimiser step")
    axes.grid(visible=False)
    depth_axis(axes, last, "y", first=first)


def _edges(centres: Sequence[int] | range) -> list[float]:
    """Borders of cells around increasing centres."""
    if len(centres) == 1:
        return [centres[0] - 0.5, centres[0] + 0.5]
    middles = [(a + b) / 2 for a, b in pairwise(centres)]
    return [2 * centres[0] - middles[0], *middles, 2 * centres[-1] - middles[-1]]
