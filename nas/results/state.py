"""How far a run has come, read from its folder; also while another process works on it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nas.executors.board import WorkerState, read_workers
from nas.request.picks import KNEE
from nas.request.spec import SearchSpec
from nas.results.baselines import (
    Comparison,
    MainScore,
    comparisons,
    trained_by_search,
    trained_winner,
)
from nas.results.failures import FailedNetwork, read_failed
from nas.run.duration import Duration, ToldAndTaken, compare, read_duration
from nas.run.folder import RunFolder, locked, resume_command
from nas.run.layout import (
    FRONT_FILE,
    LOCK_FILE,
    PRUNING_FILE,
    SPEC_FILE,
    result_file,
    scratch_file,
)
from nas.run.stages import REPORT, RETRAIN, SCRATCH, TRAINED, stages_of_run
from nas.search.front import Front, FrontEntry, read_front, read_left, read_winner, winner
from search_spaces.errors import DamagedRunError, NasError, RunConflictError, UsageError

RUNS = Path("runs")


@dataclass(frozen=True, slots=True)
class StageState:
    """One stage: ``done``, ``to do`` or what is wrong with its files, and its seconds."""

    name: str
    state: str
    seconds: float | None = None

    @property
    def done(self) -> bool:
        """Whether it needs no more work."""
        return self.state == "done"


@dataclass(frozen=True)
class RunState:
    """A run as it stands on the disk.

    Attributes:
        stages: those this run needs, in order.
        running: whether another process works on it.
        front: the front, once there is one that can be read.
        picked: id of the network that the request chooses from it, if it can be chosen.
        retrained: the results of networks trained from scratch, or fine-tuned where the run began
            with a checkpoint, by id.
        problems: what is wrong with its files, one sentence each.
        failed: networks that could not be evaluated.
        workers: what each worker does now, where there are several.
        duration: what was told of it before it began; None where nothing was.
        unpicked: why no network is picked though there is a front; empty otherwise.
        left: id of the candidate that successive halving left, which is trained whole also where
            another network wins; None without a halving, or before its end.
        from_scratch: the results of networks that were trained from scratch for comparison.
    """

    stages: tuple[StageState, ...]
    running: bool
    front: Front | None
    picked: str | None
    retrained: tuple[dict[str, Any], ...]
    problems: tuple[str, ...]
    failed: tuple[FailedNetwork, ...] = ()
    workers: tuple[WorkerState, ...] = ()
    duration: Duration | None = None
    unpicked: str = ""
    left: str | None = None
    from_scratch: tuple[dict[str, Any], ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know of it: what is wrong with its files, and why no network is picked."""
        return (*self.problems, self.unpicked) if self.unpicked else self.problems

    @property
    def told(self) -> ToldAndTaken:
        """How long it was to take, beside how long it took."""
        trained = trained_by_search(self.front, self.left, self.picked)
        took = {one.name: one.seconds for one in self.stages if one.seconds is not None}
        return compare(self.duration or Duration(), took, trained, self._asked_epochs)

    @property
    def _winner(self) -> FrontEntry | None:
        networks = () if self.front is None else self.front.networks
        return next((one for one in networks if one.id == self.picked), None)

    @property
    def _valid_scores(self) -> dict[str, dict[str, float]]:
        """Id of a network → its scores on the validation split."""
        return {str(one.get("id")): _valid_scores(one) for one in self.retrained}

    @property
    def _asked_epochs(self) -> dict[str, int]:
        """Id of a network → the epochs that were asked for it in place of the run's."""
        asked = {str(one.get("id")): one.get("asked_epochs") for one in self.retrained}
        return {network_id: epochs for network_id, epochs in asked.items() if epochs}

    def comparisons(self, spec: SearchSpec) -> list[Comparison]:
        """The winner beside the baselines, as far as both are known."""
        if self.front is None or self._winner is None:
            return []
        scores = {str(one.get("id")): MainScore.of(one) for one in self.retrained}
        known = {name: score for name, score in scores.items() if score is not None}
        return comparisons(self.front, self._winner, known, bool(spec.limits))

    def trained_winner(self, spec: SearchSpec) -> FrontEntry | None:
        """The picked network, its quality that of its training; None where that is not known."""
        return trained_winner(self._winner, self._valid_scores, spec.judged)

    def order_sentence(self, spec: SearchSpec) -> str | None:
        """How well the search ordered the networks that were trained since, if they are enough."""
        if self.front is None or spec.evaluator is not None or len(self.retrained) < 2:
            return None
        from nas.results.retrained_order import retrained_order  # imports scipy

        found = retrained_order(self.front, spec.judged, self._valid_scores, self._asked_epochs)
        return None if found is None else found.sentence

    @property
    def summary(self) -> str:
        """``finished``, ``running: STAGE``, ``stopped at STAGE`` or ``damaged at STAGE``."""
        first = next((stage for stage in self.stages if not stage.done), None)
        if self.running:
            return f"running: {first.name if first else 'training'}"
        if first is None:
            return "damaged" if self.problems else "finished"
        return f"{'stopped' if first.state == 'to do' else 'damaged'} at {first.name}"


def _valid_scores(result: Mapping[str, Any]) -> dict[str, float]:
    """Score → its value on the validation split, of ``retrained/ID/result.json``."""
    return {
        name.removeprefix("valid_"): value
        for name, value in result.items()
        if name.startswith("valid_") and isinstance(value, int | float)
    }


def open_run(name: str) -> RunFolder:
    """Open a run given as a path, or as the name of a folder in ``runs``.

    Raises:
        UsageError: when there is none.
        DamagedRunError: when its spec cannot be read.
    """
    path = Path(name)
    if not (path / SPEC_FILE).is_file() and (RUNS / name / SPEC_FILE).is_file():
        path = RUNS / name
    return RunFolder.open(path)


def going_on(path: Path, *, unpicked: bool) -> str:
    """What to type next for a run that is not finished.

    Args:
        path: of the run.
        unpicked: all that is left is to train what nothing on the front is, which no resuming does.
    """
    if unpicked:
        return f"nas retrain {shlex.quote(str(path))} --pick {KNEE}"
    return resume_command(path)


def find_runs(parent: Path) -> list[Path]:
    """The run folders directly below `parent`, by name."""
    return sorted(file.parent for file in parent.glob(f"*/{SPEC_FILE}"))


def stages_of(
    folder: RunFolder, front: Front | None, picked: str | None, *, unpicked: bool
) -> list[str]:
    """The stages a run goes through, the networks trained from scratch so far included.

    Args:
        folder: the run.
        front: its front, whose baselines it trains as well; None where there is none yet.
        picked: id of the network that it trains; None where that is not known yet.
        unpicked: whether nothing on the front is what it picks. Any other network of the front does
            then, and nothing is trained beside it.
    """
    ended = folder.finished("*")
    wanted = [stage.name for stage in stages_of_run(folder.spec, ended)]
    if folder.spec.evaluator is not None:  # who alone knows the networks
        return [*wanted, REPORT.name]
    entries = () if front is None else front.entries
    baselines = () if front is None or unpicked else front.baselines
    chosen = [TRAINED if picked is None else RETRAIN + picked]
    if unpicked and any(RETRAIN + one.id in ended for one in entries):
        chosen = []
    chosen += [RETRAIN + one.entry.id for one in baselines]
    chosen += [one for kind in (RETRAIN, SCRATCH) for one in folder.finished(f"{kind}*")]
    return [*wanted, *dict.fromkeys(chosen), REPORT.name]


def read_state(folder: RunFolder, *, thorough: bool) -> RunState:
    """Read how far a run has come.

    Args:
        folder: the run.
        thorough: compare the checksums of all files, which takes time for large weights.
    """
    problems: list[str] = []
    front = _front(folder, problems)
    picked, unpicked = (None, "") if front is None else _picked(folder, front, problems)
    names = stages_of(folder, front, picked, unpicked=bool(unpicked))
    stages = tuple(_stage(folder, name, thorough) for name in names)
    problems += [stage.state for stage in stages if stage.state not in ("done", "to do")]
    retrained, scratch = (
        tuple(_retrained(folder, problems, which("*"))) for which in (result_file, scratch_file)
    )
    duration = _duration(folder, problems)
    running = is_locked(folder.path)
    return RunState(
        stages,
        running,
        front,
        picked,
        retrained,
        tuple(dict.fromkeys(problems)),
        read_failed(folder),
        tuple(read_workers(folder.path)) if running else (),
        duration,
        unpicked,
        None if front is None else read_left(folder),
        scratch,
    )


def is_locked(path: Path) -> bool:
    """Whether a process works on the run in `path`."""
    if not (path / LOCK_FILE).exists():
        return False
    try:
        with locked(path, wait_s=0):
            return False
    except RunConflictError:
        return True
    except OSError:
        return False  # a folder that only may be read: nobody can work on it from here


def _stage(folder: RunFolder, name: str, thorough: bool) -> StageState:
    try:
        record = folder.record(name)
    except DamagedRunError as error:
        return StageState(name, str(error))
    if record is None:
        return StageState(name, "to do")
    damage = folder.damage(record) if thorough else None
    if name == "prune" and damage is None:
        return StageState(name, _pruned_as_asked(folder), record.seconds)
    return StageState(name, damage or "done", record.seconds)


def _pruned_as_asked(folder: RunFolder) -> str:
    """``done``, ``to do`` if other protected are in force now, or what is wrong with their file."""
    try:
        protected = {name: list(choices) for name, choices in folder.protected.items()}
    except DamagedRunError as error:
        return str(error)
    try:
        known = folder.read_json(PRUNING_FILE).get("vetoes", {})
    except (DamagedRunError, AttributeError):
        return "done"  # only a thorough look compares the files
    return "done" if known == protected else "to do"


def _front(folder: RunFolder, problems: list[str]) -> Front | None:
    if not folder.has(FRONT_FILE):
        return None
    try:
        return read_front(folder)
    except NasError as error:
        problems.append(str(error))
    return None


def _duration(folder: RunFolder, problems: list[str]) -> Duration | None:
    try:
        return read_duration(folder)
    except DamagedRunError as error:
        problems.append(str(error))
    return None


def _picked(folder: RunFolder, front: Front, problems: list[str]) -> tuple[str | None, str]:
    """The id of the network that is picked, or why there is none."""
    try:
        return winner(front, folder.spec.pick, read_winner(folder)).id, ""
    except DamagedRunError as error:
        problems.append(str(error))
        return None, ""
    except UsageError as error:
        if folder.spec.evaluator is not None:
            return None, f"{error}; nas show with another --pick shows another network"
        return None, f"{error}; nas retrain with another --pick trains another network"


def _retrained(folder: RunFolder, problems: list[str], which: str) -> Iterator[dict[str, Any]]:
    for name in folder.found(which):
        try:
            result = folder.read_json(name)
        except DamagedRunError as error:
            problems.append(str(error))
            continue
        if isinstance(result, dict):
            yield result
        else:
            problems.append(f"{folder.path / name} is damaged: it holds no object")
