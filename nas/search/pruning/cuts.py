"""Cutting choices one by one, each against what the predictions and the measurements say.

Shapes: N networks, S slots, M objectives, of which the first is the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nas.search.pareto import hypervolume, non_dominated
from nas.search.pruning.evidence import Candidate, Evidence, ScoredSample
from search_spaces.genes import Value
from search_spaces.genotypes import Genotypes, GenotypeSpace
from search_spaces.space import Choice, SearchSpace

Floats = NDArray[np.float64]

# In units of the scored networks' extent: the worst of them still adds to the hypervolume.
REFERENCE = 1.1


@dataclass(frozen=True)
class Cut:
    """A choice that was cut.

    Attributes:
        name: gene (``encoder.attention``, all layers) or slot (``encoder.2.ffn_dim``).
        choice: what was cut.
        evidence: why.
        hypervolume_ratio: of the scored networks that remain after it to that of all.
        size: exact number of networks that remain after it.
        share: that number over the root's.
    """

    name: str
    choice: Value
    evidence: Evidence
    hypervolume_ratio: float
    size: int
    share: float


@dataclass(frozen=True, eq=False)
class Observed:
    """Observed networks ``(N, S)`` that no other dominates, and what beats them for sure.

    A prediction counts as at least as good as ``goals`` ``(N, M)``: the measured values, the loss
    lowered by the ranker's usual error on networks that it has not seen.
    """

    rows: Genotypes
    goals: Floats


class ChoiceCutter:
    """The cuts so far, and the scored networks that they leave.

    Attributes:
        space: what is left of the root.
        cuts: in the order they were made.
    """

    def __init__(
        self,
        scored: ScoredSample,
        root: GenotypeSpace,
        tolerance: float,
        deepest: Mapping[str, int],
        best: Observed,
    ) -> None:
        """Begin with nothing cut.

        Args:
            scored: networks of the root with their predicted objectives, all within the limits.
            root: the whole space.
            tolerance: share of their hypervolume that all cuts together may lose.
            deepest: stack → layer (from 0) that some remaining network has to have.
            best: measured networks to be replaced before a choice of theirs is cut.
        """
        self.root, self.space = root, root
        self.cuts: list[Cut] = []
        self._tolerance, self._deepest, self._best = tolerance, deepest, best
        self._rows, self._points = scored.genotypes, scored.scores.objectives
        self._positive = _positive(self._points)
        logs = _logs(self._points, self._positive)
        self._low = logs.min(axis=0)
        extent = np.ptp(logs, axis=0)
        self._extent = np.where(extent > 0, extent, 1.0)
        self._whole = self._volume(self._points)
        self._gone: set[tuple[int, int]] = set()

    def is_cut(self, candidate: Candidate) -> bool:
        """Whether all its places were cut before."""
        return set(candidate.places) <= self._gone

    def cut(self, candidate: Candidate, facts: Evidence) -> str | None:
        """Cut, or say why not."""
        gone = self._gone | set(candidate.places)
        choices: dict[str, list[Choice]] = {}
        for column, slot in enumerate(self.root.slots):
            left = [c for index, c in enumerate(slot.choices) if (column, index) not in gone]
            if not left:
                return f"It is the last choice of {slot.name}."
            choices[slot.name] = left
        smaller = self.root.restrict(choices)
        if not self._deep_enough(smaller):
            return "A layer of which a choice was asked to be kept needs it."
        if smaller.size == self.space.size:
            return "It only occurs in layers that no remaining network has."
        left_over = ~candidate.present(self.root, self._rows).any(axis=1)
        ratio = self._volume(self._points[left_over]) / self._whole
        if ratio < 1 - self._tolerance:
            return f"Without it, the predicted front keeps only {ratio:.3f} of its hypervolume."
        if self._is_missed(candidate, self._points[left_over]):
            return (
                "One of the best observed networks has it, and none without it is predicted to be "
                "as good beyond doubt."
            )
        self._gone, self.space = gone, smaller
        self._rows, self._points = self._rows[left_over], self._points[left_over]
        share = smaller.size / self.root.size
        self.cuts.append(Cut(candidate.name, candidate.choice, facts, ratio, smaller.size, share))
        return None

    def _deep_enough(self, smaller: GenotypeSpace) -> bool:
        """Whether the layers are left of which a choice was asked to be kept."""
        if not isinstance(smaller, SearchSpace):
            return True  # no layer is ever cut
        return all(smaller.max_layers(stack) > layer for stack, layer in self._deepest.items())

    def _is_missed(self, candidate: Candidate, points: Floats) -> bool:
        """Whether one of the best observed networks has the choice and nothing replaces it."""
        has = candidate.present(self.root, self._best.rows).any(axis=1)
        return any(not (points <= goal).all(axis=1).any() for goal in self._best.goals[has])

    def _volume(self, objectives: Floats) -> float:
        points = (_logs(objectives, self._positive) - self._low) / self._extent
        front = points[non_dominated(points)]
        return hypervolume(front, np.full(points.shape[1], REFERENCE))


def _positive(objectives: Floats) -> NDArray[np.bool_]:
    """Which columns are positive throughout, ``(M,)``: there ratios count."""
    mask: NDArray[np.bool_] = np.all(objectives > 0, axis=0)
    return mask


def _logs(objectives: Floats, columns: NDArray[np.bool_]) -> Floats:
    """The objectives with these columns as logarithms."""
    out = objectives.copy()
    out[:, columns] = np.log(objectives[:, columns])
    return out


def best_observed(rows: Genotypes, points: Floats, violations: Floats, error: float) -> Observed:
    """The observed networks within the limits that no other such one dominates.

    Args:
        rows: ``(N, S)``, observed.
        points: ``(N, M)``, what was measured of them.
        violations: ``(N,)``, by how much they miss the limits; 0 for not at all.
        error: the ranker's, on networks that it was fitted without.
    """
    rows, points = rows[violations == 0], points[violations == 0]
    if len(rows) == 0:
        return Observed(rows, points)
    best = non_dominated(points)
    goals = points[best]
    goals[:, 0] -= error
    return Observed(rows[best], goals)
