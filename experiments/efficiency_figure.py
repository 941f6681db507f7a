"""The figure of `experiments.search_efficiency`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

COLOURS = {
    "rank-evolve": "#0072b2",
    "ranknas": "#009e73",
    "nsga2": "#d55e00",
    "tpe": "#cc79a7",
    "random": "#777777",
}


def draw(space: str, lines: Mapping[str, Any], path: Path) -> None:
    """Median share of the reference hypervolume by evaluations, with the range of all seeds.

    Args:
        space: for the title.
        lines: searcher → ``evaluations`` (K,) and ``shares`` (K, seeds).
        path: an SVG file.
    """
    with mpl.rc_context({"svg.hashsalt": "efficiency"}):  # the same picture, the same bytes
        figure = Figure(figsize=(8, 4.8), layout="constrained")
        axes = figure.subplots()
        for name, line in lines.items():
            shares = np.array(line["shares"])
            middle, low, high = (
                np.quantile(shares, quantile, axis=1) for quantile in (0.5, 0.0, 1.0)
            )
            colour = COLOURS[name]
            marker = "o" if name == "ranknas" else None
            axes.plot(line["evaluations"], 1 - middle, color=colour, label=name, marker=marker)
            axes.fill_between(line["evaluations"], 1 - high, 1 - low, color=colour, alpha=0.15)
        axes.axhline(0.01, color="black", linewidth=0.8, linestyle=":")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("networks really evaluated")
        axes.set_ylabel("share of the reference hypervolume missed")
        axes.set_title(f"{space}: median of the seeds, and their range")
        axes.legend()
        figure.savefig(path, format="svg", metadata={"Date": None})
