"""What a profile's predictor is worth: error and rank correlation by number of samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latency.predictor import MIN_OBSERVATIONS, LatencyPredictor, Terms, score
from latency.regressors import CANDIDATES
from nas.profiling.device_profile import WorkloadProfile

Floats = NDArray[np.float64]

FIRST_SIZE = 10
TEST_SHARE = 0.2
NUM_SPLITS = 3
NAMES = ("predictor", "linear", "depth")


def learning_curve(
    features_NF: Floats,
    terms: Terms | None,
    ms_N: Floats,
    depth_N: Floats,
    weights_N: Floats,
    seed: int,
) -> dict[str, Any]:
    """Fit to more and more of the measured networks, and predict a fifth that is held out.

    Args:
        features_NF: ``(N, F)`` as the predictor sees them.
        terms: as in `LatencyPredictor.fit`.
        ms_N: ``(N,)`` measured.
        depth_N: ``(N,)`` layers of the last stack, which makes a baseline.
        weights_N: ``(N,)`` trust in each measurement.
        seed: of the splits; the numbers are means over three of them.

    Returns:
        ``sizes``: a list of ``{"samples", "predictor", "linear", "depth"}``, the last three with
        ``mape`` (0.05 is 5 %) and ``kendall_tau``; empty for fewer than 10 networks.
    """
    rows: list[dict[str, Any]] = []
    num_test = max(2, round(TEST_SHARE * len(ms_N)))
    for size in sizes(len(ms_N) - num_test):
        scores: dict[str, list[tuple[float, float]]] = {name: [] for name in NAMES}
        for split in range(NUM_SPLITS):
            order = np.random.default_rng([seed, split]).permutation(len(ms_N))
            test, train = order[:num_test], order[num_test:][:size]
            predictor = LatencyPredictor.fit(
                features_NF[train], ms_N[train], terms=terms, weights=weights_N[train], seed=seed
            )
            depth_N1 = np.asarray(depth_N, dtype=np.float64)[:, None]
            predictions = {
                "predictor": predictor.mean(features_NF[test]),
                "linear": _linear(features_NF, ms_N, train, test),
                "depth": _linear(depth_N1, ms_N, train, test),
            }
            for name, predicted in predictions.items():
                found = score(predicted, ms_N[test])
                scores[name].append((found.mape, found.kendall_tau))
        rows.append({"samples": size} | {name: _mean(scores[name]) for name in NAMES})
    return {"sizes": rows, "test": num_test, "splits": NUM_SPLITS}


def accuracy_rows(one: WorkloadProfile) -> list[tuple[str, dict[str, tuple[float, float]]]]:
    """What tables tell of a latency predictor: its learning curve, and the predictor itself.

    Returns:
        For each row its head and predictor, linear or depth → relative error (0.05 is 5 %) and
        Kendall τ. The last row is cross-validated on all networks, and is always there.
    """
    curve = [
        (
            str(row["samples"]),
            {name: (row[name]["mape"], row[name]["kendall_tau"]) for name in NAMES},
        )
        for row in one.report["sizes"]
    ]
    chosen = one.latency.report
    scores = {"predictor": chosen.candidates[chosen.chosen], **chosen.baselines}
    last = {name: (scores[name].mape, scores[name].kendall_tau) for name in NAMES}
    return [*curve, (f"{chosen.num_observations}, cross-validated", last)]


def card_sentence(one: WorkloadProfile) -> str | None:
    """How a graphics card worked: the host's share, and its state after the last session.

    None of a processor.
    """
    parts, last = [], one.sessions[-1]
    if one.host is not None:
        parts.append(
            f"of {one.host.total_ms:.3g} ms of the reference network the host takes "
            f"{one.host.host_ms:.3g} ms ({one.host.share:.0%})"
        )
    if last.celsius is not None:
        clock = "" if last.clock_mhz is None else f"{last.clock_mhz:.0f} MHz and "
        parts.append(f"the card was at {clock}{last.celsius:.0f} °C at last")
    if slowed := sum(bool(session.throttled) for session in one.sessions):
        parts.append(f"it throttled in {slowed} of {len(one.sessions)} sessions")
    return f"{one.workload.label}: {', '.join(parts)}" if parts else None


def sizes(most: int) -> list[int]:
    """10, 20, 40, … and the most there are: ``sizes(80)`` is [10, 20, 40, 80]."""
    if most < MIN_OBSERVATIONS:
        return []
    found = []
    size = FIRST_SIZE
    while size < most:
        found.append(size)
        size *= 2
    return [*found, most]


def _linear(
    features_NF: Floats, ms_N: Floats, train: NDArray[np.int64], test: NDArray[np.int64]
) -> Floats:
    return CANDIDATES["linear"]().fit(features_NF[train], ms_N[train]).predict(features_NF[test])


def _mean(pairs: list[tuple[float, float]]) -> Mapping[str, float]:
    mape, tau = np.mean(pairs, axis=0).tolist()
    return {"mape": round(mape, 6), "kendall_tau": round(tau, 6)}
