"""How well a ranker orders networks it has not seen, and which ranker to take.

Everything is measured out of fold: each network is predicted by a ranker that was fitted without
it. All candidates see the same folds. The best of several candidates looks slightly better than
it is; the candidates' own numbers stand in the card, so that this can be judged.

Shapes: N networks, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from nas.search.ranking.agreement import tau_interval
from nas.search.ranking.base import Floats, Ranker, checked_features, checked_losses, worse_pairs
from nas.search.ranking.ensemble import Ensemble
from nas.search.ranking.gaussian import GaussianProcess
from nas.search.ranking.pairwise import PairwiseLinear, PairwiseTrees
from search_spaces.errors import DamagedRunError, UsageError
from search_spaces.json_text import read_as

MIN_OBSERVATIONS = 8
MAX_FOLDS = 5
CURVE_SHARES = (0.25, 0.5, 0.75)

Factory = Callable[[], Ranker]
Folds = list[tuple[NDArray[np.int64], NDArray[np.int64]]]


@dataclass(frozen=True)
class Fidelity:
    """Agreement of an order with the losses.

    Attributes:
        kendall_tau: tau-b in [-1, 1]; 0 where it is not defined (everything ties).
        spearman: rank correlation in [-1, 1]; 0 where it is not defined.
        pairwise_accuracy: share in [0, 1] of the pairs with different losses that are ordered
            right; a tied score is half right; 0.5 without any such pair.
        count: networks compared.
        interval: 95 % interval of `kendall_tau`, see `tau_interval`; None where none was asked for
            or there is none.
    """

    kendall_tau: float
    spearman: float
    pairwise_accuracy: float
    count: int
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class CurvePoint:
    """One point of the learning curve.

    Attributes:
        observations: networks a ranker was fitted on.
        fidelity: of the held-out order it gave.
    """

    observations: int
    fidelity: Fidelity


@dataclass(frozen=True)
class ReportCard:
    """What is known about a run's ranker.

    Attributes:
        ranker: name of the chosen one.
        observations: networks with a loss.
        folds: of the cross-validation.
        held_out: the chosen ranker, out of fold.
        candidates: every ranker that was tried, out of fold.
        baselines: "more is better" orders by a known number, for example parameters.
        curve: the chosen ranker by number of observations, rising.
        importances: feature → share of the scores' spread, largest first.
        notes: sentences about what was left out and why.
        error: root mean square of the chosen ranker's errors on networks it was fitted without, in
            the unit of the losses; None in cards of versions that did not know it.
    """

    ranker: str
    observations: int
    folds: int
    held_out: Fidelity
    candidates: Mapping[str, Fidelity]
    baselines: Mapping[str, Fidelity]
    curve: tuple[CurvePoint, ...]
    importances: Mapping[str, float]
    notes: tuple[str, ...] = field(default=())
    error: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The card as plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote.

        Raises:
            DamagedRunError: when a part is missing or malformed.
        """
        try:
            return read_as(cls, data)
        except ValueError as error:
            raise DamagedRunError(f"the ranker's report card is damaged: {error}") from error


def default_candidates() -> tuple[list[Factory], list[str]]:
    """Rankers worth trying, simplest first, and notes about those that cannot run here.

    No ranker wins on all data sets and sample sizes, so the choice is left to the run's own data.
    """
    candidates: list[Factory] = [
        lambda: PairwiseLinear(0.1),
        lambda: PairwiseLinear(0.01),
        lambda: PairwiseLinear(0.001),
        lambda: PairwiseLinear(0.1, interactions=True),
        lambda: PairwiseLinear(0.01, interactions=True),
        GaussianProcess,
        Ensemble,
    ]
    if not PairwiseTrees.available():
        return candidates, ["Pairwise trees were left out: LightGBM does not load (no libgomp?)."]
    return [*candidates, PairwiseTrees], []


def choose_ranker(
    features: ArrayLike,
    losses: ArrayLike,
    baselines: Mapping[str, ArrayLike],
    rng: np.random.Generator,
    feature_names: Sequence[str] | None = None,
    candidates: Sequence[Factory] | None = None,
) -> tuple[Ranker, ReportCard]:
    """Take the ranker with the best held-out Kendall tau and fit it to everything.

    Args:
        features: ``(N, F)`` in root coordinates, N at least 8.
        losses: ``(N,)``, lower is better.
        baselines: name → ``(N,)`` numbers of which more should be better (parameters, FLOPs).
        rng: decides the folds.
        feature_names: F names for the importances.
        candidates: makers of unfitted rankers; `default_candidates` if not given. Equal ones are
            decided by the order.

    Returns:
        The fitted ranker and its report card.

    Raises:
        UsageError: for fewer than 8 networks, NaN, infinity or shapes that do not fit.
    """
    matrix, observed = _checked(features, losses)
    notes: list[str] = []
    if candidates is None:
        candidates, notes = default_candidates()
    folds = _folds(len(observed), rng)
    predicted = [held_out_predictions(make, matrix, observed, folds) for make in candidates]
    tried = [fidelity(prediction, observed) for prediction in predicted]
    best = int(np.argmax([round(result.kendall_tau, 9) for result in tried]))
    make = candidates[best]
    held_out = with_interval(tried[best], predicted[best], observed)
    ranker = make().fit(matrix, observed, feature_names)
    card = ReportCard(
        ranker=ranker.name,
        observations=len(observed),
        folds=len(folds),
        held_out=held_out,
        candidates={
            candidate().name: result for candidate, result in zip(candidates, tried, strict=True)
        },
        baselines={name: _baseline(name, numbers, observed) for name, numbers in baselines.items()},
        curve=_learning_curve(make, matrix, observed, folds, held_out),
        importances=ranker.importances(),
        notes=tuple(notes),
        error=_error(predicted[best], observed),
    )
    return ranker, card


def quick_card(features: ArrayLike, losses: ArrayLike, make: Factory, seed: int) -> ReportCard:
    """The card of one given ranker without candidates, baselines, curve and importances.

    Arguments and errors as for `choose_ranker`.
    """
    matrix, observed = _checked(features, losses)
    folds = _folds(len(observed), np.random.default_rng(seed))
    predicted = held_out_predictions(make, matrix, observed, folds)
    return ReportCard(
        make().name,
        len(observed),
        len(folds),
        fidelity(predicted, observed),
        candidates={},
        baselines={},
        curve=(),
        importances={},
        error=_error(predicted, observed),
    )


def _checked(features: ArrayLike, losses: ArrayLike) -> tuple[Floats, Floats]:
    matrix, observed = checked_features(features), checked_losses(losses)
    if len(matrix) != len(observed) or len(observed) < MIN_OBSERVATIONS:
        raise UsageError(
            f"choosing a ranker needs at least {MIN_OBSERVATIONS} networks and one loss for each; "
            f"given {len(matrix)} networks and {len(observed)} losses: observe more networks"
        )
    return matrix, observed


def fidelity(scores: ArrayLike, losses: ArrayLike) -> Fidelity:
    """Compare an order with the losses.

    Args:
        scores: ``(N,)``, lower is better, N at least 2.
        losses: ``(N,)``.

    Raises:
        UsageError: for NaN, infinity, fewer than two networks or different lengths.
    """
    order, observed = checked_losses(scores), checked_losses(losses)
    if len(order) != len(observed) or len(order) < 2:
        raise UsageError(
            "an order can be judged for two networks or more, with one loss for each; "
            f"given {len(order)} scores and {len(observed)} losses"
        )
    tau = spearman = 0.0
    if np.ptp(order) > 0 and np.ptp(observed) > 0:
        tau = float(stats.kendalltau(order, observed).statistic)
        spearman = float(stats.spearmanr(order, observed).statistic)
    return Fidelity(tau, spearman, _pairwise_accuracy(order, observed), len(order))


def with_interval(result: Fidelity, scores: Floats, losses: Floats) -> Fidelity:
    """The same fidelity with the interval of its tau."""
    return replace(result, interval=tau_interval(scores, losses))


def held_out_predictions(make: Factory, features: Floats, losses: Floats, folds: Folds) -> Floats:
    """Predict each network by a ranker fitted without it, ``(N,)``.

    Predictions rather than scores, because the scores of different folds have no common unit.
    """
    predicted = np.zeros(len(losses))
    for train, held_out in folds:
        ranker = make().fit(features[train], losses[train])
        predicted[held_out] = ranker.predict(features[held_out])
    return predicted


def _error(predicted: Floats, losses: Floats) -> float:
    """Root mean square of predictions less losses."""
    return float(np.sqrt(np.mean((predicted - losses) ** 2)))


def _folds(count: int, rng: np.random.Generator) -> Folds:
    """Training and held-out rows of each fold; both in random order."""
    parts = np.array_split(rng.permutation(count), min(MAX_FOLDS, count // 2))
    return [
        (np.concatenate([*parts[:number], *parts[number + 1 :]]), part)
        for number, part in enumerate(parts)
    ]


def _learning_curve(
    make: Factory, features: Floats, losses: Floats, folds: Folds, whole: Fidelity
) -> tuple[CurvePoint, ...]:
    """Held-out fidelity when each fold trains on the first part of its rows only."""
    largest = min(len(train) for train, _ in folds)
    points = []
    for size in sorted({int(share * largest) for share in CURVE_SHARES}):
        if 2 <= size < largest:
            shorter = [(train[:size], held_out) for train, held_out in folds]
            predicted = held_out_predictions(make, features, losses, shorter)
            points.append(CurvePoint(size, fidelity(predicted, losses)))
    return (*points, CurvePoint(largest, whole))


def _baseline(name: str, numbers: ArrayLike, losses: Floats) -> Fidelity:
    scores = -checked_losses(numbers)
    if len(scores) != len(losses):
        raise UsageError(f"baseline {name!r} has {len(scores)} numbers for {len(losses)} networks")
    return with_interval(fidelity(scores, losses), scores, losses)


def _pairwise_accuracy(scores: Floats, losses: Floats) -> float:
    worse = worse_pairs(losses)
    count = int(worse.sum())
    if count == 0:
        return 0.5
    right = (scores[:, None] > scores[None, :])[worse].sum()
    tied = (scores[:, None] == scores[None, :])[worse].sum()
    return float((right + tied / 2) / count)
