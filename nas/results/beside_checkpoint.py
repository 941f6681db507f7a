"""A network beside the checkpoint that its search began with, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nas.objectives import OBJECTIVES, QUALITY, TIMED


def ratio(name: str, before: float, after: float) -> str:
    """A cost beside the checkpoint's: ``1.6 × faster``, ``0.43 of it``."""
    objective = OBJECTIVES[name]
    if before <= 0 or after <= 0:
        value = f"{after:.4g} {objective.symbol}".strip()
        return "as it was" if before == after else f"{value} where its own is {before:.4g}"
    if objective.maximise:
        return f"{after / before:.2f} × as many"
    if name in TIMED:
        speed = before / after
        return f"{speed:.2f} × faster" if speed >= 1 else f"{1 / speed:.2f} × slower"
    return f"{after / before:.2f} of it"


def costs_beside(
    costs: Sequence[str], before: Mapping[str, float], after: Mapping[str, float]
) -> list[str]:
    """What a network costs of what the checkpoint does, as far as both are known."""
    known = [name for name in costs if name in before and name in after]
    return [f"{OBJECTIVES[name].label} {ratio(name, before[name], after[name])}" for name in known]


def beside_checkpoint(
    label: str, costs: Sequence[str], before: Mapping[str, float], after: Mapping[str, float]
) -> str:
    """The quality of both, and what the network costs of what the checkpoint does.

    Args:
        label: what quality is called.
        costs: names of objectives.
        before: values of the checkpoint.
        after: values of the network, its quality that of its own training.
    """
    quality = f"the winner's {label} is {after[QUALITY]:.4g} where its own is {before[QUALITY]:.4g}"
    return ", ".join([quality, *costs_beside(costs, before, after)])
