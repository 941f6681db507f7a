"""The stage that fits the ranker."""

from __future__ import annotations

from collections.abc import Iterator

from nas.objectives import exact
from nas.run.duration import FIT, Asked, Part, Plan
from nas.run.events import Event, Progress
from nas.run.layout import IMPORTANCES_FILE, RANKER_FILE, REPORT_CARD_FILE
from nas.run.opened import RANK
from nas.search.ranking import choose_ranker, fitted_rows
from nas.stages.base import Run
from search_spaces.encoding import encode_features, feature_names

# Fits of an ensemble that choosing a ranker comes to: all candidates on all folds, the chosen one
# on parts of them, and once more on everything. Measured: 7 to 21 (experiments/LOG.md, 2026-11-24).
FITS = 14


def work(run: Run) -> Iterator[Event]:
    """Fit the ranker and write its report card."""
    qualities = run.qualities()
    chosen = fitted_rows(qualities)
    rows, qualities = run.observed_rows[chosen], qualities[chosen]
    features = encode_features(run.domain, rows)
    ranker, card = choose_ranker(
        features,
        qualities,
        exact(run.domain, rows, ("params", "flops")),
        run.rng(RANK),
        feature_names(run.domain),
    )
    run.folder.write_json(RANKER_FILE, ranker.to_json())
    run.folder.write_json(REPORT_CARD_FILE, card.to_json())
    run.folder.write_json(IMPORTANCES_FILE, ranker.importances())
    tau, accuracy = card.held_out.kendall_tau, card.held_out.pairwise_accuracy
    message = f"{card.ranker}: held-out τ {tau:.2f}, pairs right {accuracy:.0%}"
    yield Progress("rank", 1, 1, message)


def plan(asked: Asked) -> Plan:
    """How much there is to do."""
    return Plan("tries all rankers and keeps the best", (Part(FIT, FITS),))
