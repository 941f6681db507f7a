"""Finds the settings a network trains best with: Ray Tune, Optuna's search and ASHA.

Tried are learning rate, dropout and warm-up. Every trial trains the network in a folder of its own
in the run folder and keeps checkpoints there, so that one that is interrupted goes on. What ended
is told to the search and to ASHA when a tuning is taken up again, from the records in
`nas.executors.retraining.tuning_record`; Tune's own storage is not read back, for it holds pickles.

Source: TPE, Bergstra et al., "Algorithms for Hyper-Parameter Optimization" (2011); ASHA, Li et al.,
"A System for Massively Parallel Hyperparameter Tuning" (2020).
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

from latency.turns import computing, waiting
from nas.executors.retraining.trial import finish_trial, train_trial
from nas.executors.retraining.tuning_record import (
    TUNED,
    Settings,
    TrialFolders,
    TrialRecord,
    best_of,
    key_of,
    summary,
)
from nas.run.events import Event, Progress
from nas.run.layout import TRIAL_WEIGHTS
from nas.run.opened import OpenedRun, shared_run
from search_spaces.errors import DivergedError, ExecutorError, NasError
from supernet.seeds import mixed_seed

if TYPE_CHECKING:
    from nas.request.spec import SearchSpec
    from nas.search.front import FrontEntry
    from supernet.training_settings import TrainingSettings

# Learning rates from a quarter of the run's to four times as much.
RATE_FACTOR = 4.0
MOST_DROPOUT = 0.4
MOST_WARMUP = 0.3
# ASHA looks at trials after these shares of the training, in percent, and lets a third go on.
FIRST_LOOK, REDUCTION, WHOLE = 10, 3, 101
# A worker that dies takes a trial along; so often it is started again.
RESTARTS = 4


@dataclass(frozen=True)
class RayTuner:
    """See `nas.executors.retraining.stage.Tuner`.

    Attributes:
        tell: takes events while trials work.
        cpus: reserved for a trial.
        gpus: the same, 0 or 1.
        most: trials at once; None for as many as there is room for.
    """

    tell: Callable[[Event], None]
    cpus: int
    gpus: int
    most: int | None

    def tune(self, run: OpenedRun, entry: FrontEntry, trials: int) -> None:
        """Try settings, and finish the retraining with the best, see `SearchSpec.kept_by`.

        Raises:
            DivergedError: when no training came to its end.
            ExecutorError: when trials failed for reasons of the cluster.
        """
        folders = TrialFolders(run.folder, entry.id)
        known = folders.records()
        if (best := best_of(known)) is not None:
            folders.weights_of(best.key)  # no trial is of use if they are gone
        if sum(record.state is not None for record in known) < trials:
            with waiting():
                self._try(run, entry, known, trials)
        records = [record for record in folders.records() if record.state is not None]
        best = best_of(records)
        if best is None:
            raise DivergedError(
                f"none of the {len(records)} trials of network {entry.id} came to its end; lower "
                "retrain.learning_rate"
            )
        place = {"num_cpus": self.cpus, "num_gpus": self.gpus}
        task: Any = ray.remote(_finish)
        path = str(run.folder.path.resolve())
        try:
            with waiting():
                ray.get(task.options(**place).remote(path, entry.id, best, summary(records)))
        except ray.exceptions.RayTaskError as error:
            raise _cause(error) from error
        for record in records:  # how each went is kept, and what more trials may not better
            if record.key != best.key:
                (folders.path_of(record.key) / TRIAL_WEIGHTS).unlink(missing_ok=True)
            shutil.rmtree(folders.path_of(record.key) / "checkpoints", ignore_errors=True)

    def _try(
        self, run: OpenedRun, entry: FrontEntry, known: list[TrialRecord], trials: int
    ) -> None:
        left = trials - sum(record.state is not None for record in known)
        folders = TrialFolders(run.folder, entry.id)
        storage = folders.path / "ray"
        shutil.rmtree(storage, ignore_errors=True)
        path = str(run.folder.path.resolve())

        def trial(settings: dict[str, float]) -> None:
            _trial(path, entry.id, settings)

        # Tune keeps what trials do by its name, also of tunings that go on at once.
        trial.__name__ = f"trial_of_{entry.id}"
        place = {"cpu": float(self.cpus), "gpu": float(self.gpus)}
        results = tune.Tuner(
            tune.with_resources(trial, place),
            tune_config=tune.TuneConfig(
                num_samples=left,
                max_concurrent_trials=self.most,
                search_alg=_search(run, known),
                scheduler=_asha(known),
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(storage.resolve()),
                callbacks=[_Ended(folders, run.spec, f"retrain-{entry.id}", trials, self.tell)],
                failure_config=tune.FailureConfig(max_failures=RESTARTS),
                verbose=0,
            ),
        ).fit()
        shutil.rmtree(storage, ignore_errors=True)
        if results.errors:
            raise _explained(results.errors[0], len(results.errors))


def _space(settings: TrainingSettings) -> dict[str, Any]:
    """What is tried; the run's own settings lie within."""
    rate = settings.learning_rate
    return {
        "learning_rate": tune.loguniform(rate / RATE_FACTOR, min(rate * RATE_FACTOR, 10.0)),
        "dropout": tune.uniform(0.0, max(MOST_DROPOUT, settings.dropout)),
        "warmup_share": tune.uniform(0.0, max(MOST_WARMUP, settings.warmup_share)),
    }


def _search(run: OpenedRun, known: list[TrialRecord]) -> OptunaSearch:
    """Goes on with what has not ended; the run's own settings come next, if they were not tried."""
    own = {name: float(getattr(run.spec.budget.retrain, name)) for name in TUNED}
    begun = {record.key for record in known}
    first = [dict(record.settings) for record in known if record.state is None]
    first += [] if key_of(own) in begun else [own]
    search = OptunaSearch(
        OptunaSearch.convert_search_space(_space(run.spec.budget.retrain)),
        metric="loss",
        mode="min",
        points_to_evaluate=first or None,
        seed=mixed_seed(run.spec.seed, len(known)) % 2**32,
    )
    for record in known:
        if record.loss is not None:
            search.add_evaluated_point(dict(record.settings), record.loss)
    return search


def _asha(known: list[TrialRecord]) -> ASHAScheduler:
    """ASHA, with what it has seen of trials that ended."""
    asha = ASHAScheduler(
        time_attr="percent",
        metric="loss",
        mode="min",
        max_t=WHOLE,
        grace_period=FIRST_LOOK,
        reduction_factor=REDUCTION,
    )
    controller: Any = None  # it looks at none
    for record in known:
        if record.state is not None:
            one: Any = SimpleNamespace(trial_id=record.key)
            asha.on_trial_add(controller, one)
            for done, loss in record.reports.items():
                asha.on_trial_result(controller, one, {"percent": done, "loss": loss})
    return asha


class _Ended(tune.Callback):
    """Notes which trials ASHA stopped, and tells how far the tuning is."""

    def __init__(
        self,
        folders: TrialFolders,
        spec: SearchSpec,
        stage: str,
        total: int,
        tell: Callable[[Event], None],
    ) -> None:
        self._folders, self._stage, self._total, self._tell = folders, stage, total, tell
        self._quality = spec.kept_by

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        loss = trial.last_result.get("loss", math.inf)
        self._folders.end(key_of(trial.config), "stopped", loss)
        records = [one for one in self._folders.records() if one.state is not None]
        ended = next(one for one in records if one.key == key_of(trial.config))
        best = best_of(records)
        values = {}
        if best is not None and best.loss is not None and self._quality.name == "loss":
            values["validation_loss"] = best.loss
        reached = f"{self._quality.objective.label} {ended.loss:.4f}"
        message = f"{_words(trial.config)}: {ended.state}, {reached}"
        done = min(len(records), self._total)
        self._tell(Progress(self._stage, done, self._total, message, values))


def _words(settings: Settings) -> str:
    return (
        f"learning rate {settings['learning_rate']:.3g}, dropout {settings['dropout']:.2f}, "
        f"warm-up {settings['warmup_share']:.2f}"
    )


def _explained(error: Exception, count: int) -> Exception:
    cause = _cause(error)
    if isinstance(cause, NasError | OSError):
        return cause
    reason = (str(cause).strip().splitlines() or [type(cause).__name__])[-1]
    return ExecutorError(
        f"{count} trial{'s' * (count != 1)} failed {RESTARTS + 1} times, the first with: "
        f"{reason[:300]}; what is finished is kept: go on with the same command"
    )


def _cause(error: Exception) -> Exception:
    """What a worker raised, without Ray's words around it."""
    return getattr(error, "cause", None) or error


# -- in the workers ---------------------------------------------------------------------------


def _trial(path: str, network_id: str, settings: Settings) -> None:
    """Train a network with other settings than the run's own."""
    run = shared_run(path)
    with computing(run.computes_on):
        for done, loss in train_trial(run, network_id, settings):
            tune.report({"percent": done, "loss": loss})


def _finish(path: str, network_id: str, best: TrialRecord, tuning: dict[str, int]) -> None:
    run = shared_run(path)
    with computing(run.computes_on):
        finish_trial(run, network_id, best, tuning)
