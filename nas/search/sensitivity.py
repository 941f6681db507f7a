"""Which genes decide an objective: importance and direction on predictions.

The networks of a space are drawn gene by gene, independently. So the variance of a prediction can
be shared out: a gene's *total effect* is half the mean squared change of the prediction when that
gene alone is drawn anew, its interactions with others included. Shares are total effects over
their sum. The direction comes from forcing each choice in otherwise equal networks.

Source: Jansen, Analysis of variance designs for model output, 1999 (total-effect estimator). The
mFormer paper, section 7, lists the top features of RankNAS; there importance is the change of the
loss when a feature is masked. We draw anew in place of masking, for every objective alike, so that
quality and costs can be compared, and say what helps.

Shapes: N networks, S slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nas.objectives import OBJECTIVES
from nas.run.folder import RunFolder, resuming
from nas.search.external_costs import observed_costs
from nas.search.scoring import read_costs, read_scorer
from search_spaces.errors import UsageError
from search_spaces.genes import Value
from search_spaces.genotypes import Genotypes, GenotypeSpace

Floats = NDArray[np.float64]
Predict = Callable[[Genotypes], Mapping[str, Floats]]

NUM_SAMPLES = 1024
MOST_FEATURES = 10


@dataclass(frozen=True)
class Feature:
    """One gene (all layers) or slot (one layer), and what it does to one objective.

    Attributes:
        name: ``encoder.attention`` or ``encoder.2.attention``.
        share: of all genes' (or all slots') total effects, 0 to 1.
        means: choice → mean prediction with it, as people read it.
        direction: ``more helps``, ``less helps``, ``best at 16`` for sizes that go up and down,
            or ``linear helps, softmax hurts``.
    """

    name: str
    share: float
    means: Mapping[Value, float]
    direction: str

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        means = {str(choice): mean for choice, mean in self.means.items()}
        return {
            "feature": self.name,
            "share": self.share,
            "direction": self.direction,
            "means": means,
        }


@dataclass(frozen=True)
class GeneEffects:
    """The most important features of one objective, most important first.

    Attributes:
        genes: over all layers.
        slots: single layers and the genes of whole stacks.
    """

    genes: tuple[Feature, ...]
    slots: tuple[Feature, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "genes": [feature.to_json() for feature in self.genes],
            "layers": [feature.to_json() for feature in self.slots],
        }


def top_features(
    space: GenotypeSpace,
    predict: Predict,
    objectives: Sequence[str],
    seed: int,
    samples: int = NUM_SAMPLES,
) -> dict[str, GeneEffects]:
    """The most important genes of every objective, and what more of them does.

    Args:
        space: the root space.
        predict: root rows ``(N, S)`` → objective → predictions ``(N,)``, as people read them.
        objectives: which of the predictions to explain.
        seed: decides the networks; the same seed gives the same answer.
        samples: networks drawn, N.
    """
    rng = np.random.default_rng(seed)
    shape = (samples, len(space.slots))
    # Genes of layers that are not there are drawn as well: a deeper network finds them random.
    rows, others = ((rng.random(shape) * space.num_choices).astype(np.int16) for _ in range(2))
    before = predict(space.canonical(rows))
    found: dict[str, dict[str, list[Feature]]] = {name: {} for name in objectives}
    for kind, groups in (("genes", _genes(space)), ("slots", _slots(space))):
        effects = {name: _effects(space, predict, rows, others, c, before) for name, c in groups}
        means: dict[str, dict[str, dict[Value, float]]] = {}  # group → objective → choice
        for objective in objectives:
            total = sum(effect[objective] for effect in effects.values())
            shares = {name: e[objective] / total if total else 0.0 for name, e in effects.items()}
            ordered = sorted(shares, key=lambda name: (-shares[name], name))[:MOST_FEATURES]
            decisive = [name for name in ordered if shares[name] > 0]
            for name in set(decisive) - set(means):
                means[name] = _means(space, predict, rows[: samples // 4], dict(groups)[name])
            found[objective][kind] = [
                Feature(name, shares[name], by_choice, _direction_of(objective, by_choice))
                for name in decisive
                for by_choice in [means[name][objective]]
            ]
    return {
        name: GeneEffects(tuple(lists["genes"]), tuple(lists["slots"]))
        for name, lists in found.items()
    }


def read_features(folder: RunFolder) -> dict[str, GeneEffects]:
    """The top features of quality and of every cost that a run asks for.

    Raises:
        UsageError: when the run has no ranker yet.
        DamagedRunError: when a predictor cannot be read.
    """
    if folder.record("rank") is None:
        raise UsageError(f"{folder.path} has no ranker yet; {resuming(folder.path)} goes on")
    spec = folder.spec
    names = list(dict.fromkeys([*spec.objectives, *spec.limits]))
    costs = read_costs(folder) if spec.evaluator is None else observed_costs(folder)
    return top_features(spec.domain, read_scorer(folder, costs).predict, names, spec.seed)


Groups = list[tuple[str, list[int]]]


def _genes(space: GenotypeSpace) -> Groups:
    """Gene → its columns, of genes with a choice."""
    columns: dict[str, list[int]] = {}
    for column, slot in enumerate(space.slots):
        if len(slot.choices) > 1:
            columns.setdefault(slot.gene_name, []).append(column)
    return list(columns.items())


def _slots(space: GenotypeSpace) -> Groups:
    return [
        (slot.name, [column]) for column, slot in enumerate(space.slots) if len(slot.choices) > 1
    ]


def _effects(
    space: GenotypeSpace,
    predict: Predict,
    rows: Genotypes,
    others: Genotypes,
    columns: list[int],
    before: Mapping[str, Floats],
) -> dict[str, float]:
    """Total effect of some columns on every prediction."""
    changed = rows.copy()
    changed[:, columns] = others[:, columns]
    after = predict(space.canonical(changed))
    return {
        name: float(np.mean((after[name] - values) ** 2)) / 2 for name, values in before.items()
    }


def _means(
    space: GenotypeSpace, predict: Predict, rows: Genotypes, columns: list[int]
) -> dict[str, dict[Value, float]]:
    """Objective → choice → mean prediction of networks that all make that choice."""
    found: dict[str, dict[Value, float]] = {}
    for choice in dict.fromkeys(c for column in columns for c in space.slots[column].choices):
        forced = rows.copy()
        for column in columns:
            if choice in space.slots[column].choices:
                forced[:, column] = space.slots[column].choices.index(choice)
        for objective, values in predict(space.canonical(forced)).items():
            found.setdefault(objective, {})[choice] = float(values.mean())
    return found


def _direction_of(objective: str, means: Mapping[Value, float]) -> str:
    """What helps an objective, or anything else of which less is better."""
    more = objective in OBJECTIVES and OBJECTIVES[objective].maximise
    return direction({choice: -mean for choice, mean in means.items()} if more else means)


def direction(means: Mapping[Value, float]) -> str:
    """What helps, in words.

    Args:
        means: choice → mean prediction, less is better.
    """
    best, worst = min(means, key=lambda c: means[c]), max(means, key=lambda c: means[c])
    if means[best] == means[worst]:
        return "makes no difference alone"
    if any(isinstance(choice, str) for choice in means):
        return f"{best} helps, {worst} hurts"
    sizes = sorted(means, key=float)
    if best == sizes[-1]:
        return "more helps"
    return "less helps" if best == sizes[0] else f"best at {best}"
