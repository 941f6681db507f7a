"""The stages that learn: latency, supernet, observations, ranker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from latency.predictor import LatencyPredictor, believed
from latency.profile import open_profile
from nas.objectives import LATENCY
from nas.run.events import ArchitectureMeasured, Event, Note, Progress
from nas.run.layout import (
    DATA_FILE,
    HISTORY_FILE,
    IMPORTANCES_FILE,
    PREDICTOR_FILE,
    PROFILE_FILE,
    RANKER_FILE,
    REPORT_CARD_FILE,
    SPACE_FILE,
)
from nas.run.opened import RANK
from nas.run.supernet_training import supernet_checkpoints, training_losses
from nas.search.doubts import disturbances, predictor_off
from nas.search.ranking import choose_ranker
from nas.search.ranking.report_card import MIN_OBSERVATIONS
from nas.search.scoring import network_costs
from nas.stages import feasibility
from nas.stages.base import Run, size_text
from nas.stages.carried import take_profile
from search_spaces.encoding import encode_features, feature_names
from search_spaces.errors import UsageError
from search_spaces.files import write_atomically
from search_spaces.loading import dump_space
from search_spaces.measurement import Measurement
from search_spaces.space import Genotypes, SearchSpace
from supernet.training.checkpoint import load
from supernet.training.loop import EpochReport

DOUBTFUL_WEIGHT = 0.1


def declare(run: Run) -> Iterator[Event]:
    """Check that the request can be met and write the space down."""
    run.executor.check(run.spec)
    _check_size(run.space)
    feasibility.check_request(run.spec, run.executor, run.carried)
    task = run.task
    for training in (run.spec.budget.supernet, run.spec.budget.retrain):
        task.check(training)
    write_atomically(run.folder.path / SPACE_FILE, dump_space(run.space))
    run.folder.write_json(
        DATA_FILE,
        {
            "dataset": task.name,
            "digest": task.digest,
            **task.describe(),
        },
    )
    yield Progress("declare", 1, 1, f"{size_text(run.space)} networks")


def measure_latency(run: Run) -> Iterator[Event]:
    """Time a sample of networks and fit the latency predictor, or take both from a profile."""
    if run.carried is not None:
        yield from take_profile(run, run.carried)
        return
    meter = run.meter()
    rows = run.sampled_rows[: run.spec.budget.latency_samples]
    networks = run.space.decode(rows)
    fresh = [network for network in networks if not meter.known(network)]
    yield Progress("latency", 0, len(networks), f"{len(fresh)} to time, the rest known")
    timed = meter.measure(networks)
    yield from disturbances("latency", timed)
    measured, predictor = list(timed.values), _fitted(run, rows, timed.values)
    if odd := _odd(predictor, measured):
        again = meter.confirm([networks[i] for i in odd])
        yield from disturbances("latency", again)
        for i, value in zip(odd, again.values, strict=True):
            measured[i] = value
        predictor = _fitted(run, rows, measured)
    path = run.folder.path / PROFILE_FILE
    path.unlink(missing_ok=True)  # of a run cut short; the device's own profile has it all
    open_profile(path, meter.header).record(list(zip(networks, measured, strict=True)))
    new = {network.id for network in fresh}
    for network, value in zip(networks, measured, strict=True):
        if network.id in new:
            yield ArchitectureMeasured("latency", network.id, {LATENCY: value.value})
    run.folder.write_json(PREDICTOR_FILE, predictor.to_json())
    report = predictor.report
    if off := predictor_off(report.mape):
        yield Note("latency", off, loud=True)
    yield Progress(
        "latency", len(networks), len(networks), f"{report.chosen}, error {report.mape:.1%}"
    )


def _odd(predictor: LatencyPredictor, measured: Sequence[Measurement]) -> list[int]:
    """Numbers of the accepted networks that take otherwise than the others let expect."""
    fitted = np.flatnonzero(believed(measured))
    odd = [int(number) for number in fitted[predictor.unexpected()]]
    return [number for number in odd if not measured[number].doubtful]


def _fitted(run: Run, rows: Genotypes, measured: Sequence[Measurement]) -> LatencyPredictor:
    """The predictor of what was timed."""
    kept = believed(measured)
    values = [value for value, keep in zip(measured, kept, strict=True) if keep]
    rows = rows[kept]
    return LatencyPredictor.fit(
        encode_features(run.space, rows),
        [value.value for value in values],
        baselines={"depth": run.space.depths(rows, run.space.stacks[-1])},
        weights=[DOUBTFUL_WEIGHT if value.doubtful else 1.0 for value in values],
        seed=run.spec.seed,
    )


def train_supernet(run: Run) -> Iterator[Event]:
    """Train the weight-sharing supernet, wherever the executor does that."""
    for report in run.executor.train(run):
        if isinstance(report, Note):
            yield report
            continue
        message = _training_message(report)
        yield Progress("supernet", report.epoch, report.epochs, message, training_losses(report))
    checkpoints = supernet_checkpoints(run)
    load(checkpoints.best)  # written long ago perhaps: the record must not vouch for a damaged file
    run.folder.write_json(HISTORY_FILE, load(checkpoints.last)["history"])


def rank(run: Run) -> Iterator[Event]:
    """Fit the ranker and write its report card."""
    rows, qualities = run.observed_rows, run.qualities()
    params, flops = network_costs(run.space, rows).T
    features = encode_features(run.space, rows)
    ranker, card = choose_ranker(
        features,
        qualities,
        {"params": params, "flops": flops},
        run.rng(RANK),
        feature_names(run.space),
    )
    run.folder.write_json(RANKER_FILE, ranker.to_json())
    run.folder.write_json(REPORT_CARD_FILE, card.to_json())
    run.folder.write_json(IMPORTANCES_FILE, ranker.importances())
    tau, accuracy = card.held_out.kendall_tau, card.held_out.pairwise_accuracy
    message = f"{card.ranker}: held-out τ {tau:.2f}, pairs right {accuracy:.0%}"
    yield Progress("rank", 1, 1, message)


def _check_size(space: SearchSpace) -> None:
    if space.size < MIN_OBSERVATIONS:
        raise UsageError(
            f"the space {space.name} holds {space.size} network{'s' * (space.size != 1)}, and a "
            f"search needs at least {MIN_OBSERVATIONS} to learn what matters: give a gene more "
            "choices"
        )


def _training_message(report: EpochReport) -> str:
    message = f"loss {report.train_loss:.3f}"
    if report.probe_losses:
        message += f", validation {np.mean(report.probe_losses):.3f}"
    if report.stopped:
        message += f", ranking stable (τ {report.tau:.3f})"
    return message
