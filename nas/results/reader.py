"""Reads a run folder, finished or not, without changing anything in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from latency.predictor import LatencyPredictor
from latency.timings import TimingJournal, read_timings
from nas.objectives import COSTS, OBJECTIVES, QUALITY, Objective, exact
from nas.profiling.device_profile import read_device_profile
from nas.request.protected_choices import checked_protected
from nas.request.spec import SearchSpec
from nas.results.contents import (
    DISTANCES,
    ContextTimes,
    Epoch,
    Exchange,
    Origin,
    PruningAudit,
    Retrained,
    RunContents,
    Stretch,
)
from nas.results.failures import failed, read_failed
from nas.run import layout
from nas.run.duration import read_duration
from nas.run.folder import RunFolder, resuming
from nas.run.omni_views import OmniViews, read_views
from nas.run.stages import OF_NETWORKS, search_stages
from nas.search.evolution import Generation
from nas.search.front import (
    Front,
    FrontEntry,
    confirmed_by_id,
    in_sessions,
    narrowed,
    read_left,
    read_winner,
)
from nas.search.pareto import constrained_ranks, crowding_distance
from nas.search.pruning.cuts import Cut
from nas.search.pruning.prune import Kept
from nas.search.ranking.report_card import ReportCard
from nas.search.sensitivity import GeneEffects, read_features
from search_spaces.architecture import Architecture
from search_spaces.encoding import encode_features
from search_spaces.errors import DamagedRunError, NasError
from search_spaces.genotypes import Genotypes, GenotypeSpace, Network
from search_spaces.json_text import UNREADABLE, finite_number, read_as

T = TypeVar("T")

# Of all that a network is scored by, the first one that is there is what its task is known by.
HEADLINES = ("bleu", "perplexity", "similarity", "accuracy")


def read_contents(folder: RunFolder) -> RunContents:
    """Read everything that is there.

    Raises:
        DamagedRunError: for a file that is there and cannot be read, naming it.
    """
    reader = _Reader(folder)
    clocks = [OBJECTIVES[name] for name in folder.spec.timed]
    profiles = _there(clocks, lambda one: reader.file(layout.profile_file(one.stage), read_timings))
    fitted = _there(
        clocks,
        lambda one: reader.json(layout.predictor_file(one.stage), LatencyPredictor.from_json),
    )
    card = reader.json(layout.REPORT_CARD_FILE, ReportCard.from_json)
    importances = reader.json(layout.IMPORTANCES_FILE, _numbers)
    measured = [
        _measured(reader, one)
        for one in OBJECTIVES.values()
        if one.measure is not None and folder.spec.evaluator is None
    ]
    times = [_times(one.name, profiles.get(one.name), fitted.get(one.name)) for one in clocks]
    observed = _observed(folder.spec, reader, (*times, *measured))
    space = folder.spec.domain
    asked = (*folder.spec.objectives, *folder.spec.limits)
    held = confirmed_by_id(reader.journal(layout.HOLDING_FILE, _held))
    lines = reader.journal(layout.VERIFICATION_FILE, lambda line: _verified(line, space))
    verified = tuple(in_sessions(filter(None, lines), held, asked, space))
    exchanges = reader.journal(layout.EXCHANGES_FILE, lambda line: read_as(Exchange, line))
    origin = _origin(folder.spec, reader, (*times, *measured))
    return RunContents(
        name=folder.path.resolve().name,
        spec=folder.spec,
        sizes=reader.json(layout.DATA_FILE, _sizes) or {},
        profiles=profiles,
        device_profile=reader.file(layout.DEVICE_PROFILE_FILE, read_device_profile),
        predictors={name: one.report for name, one in fitted.items()},
        history=reader.json(layout.HISTORY_FILE, lambda lines: read_as(tuple[Epoch, ...], lines))
        or (),
        observed=tuple(in_sessions(observed, held, asked, space)),
        population=_population(folder.spec, reader),
        verified=verified,
        failed=read_failed(folder),
        front=reader.json(layout.FRONT_FILE, lambda data: narrowed(_front(data, space), folder)),
        exchanges=tuple(one for one in exchanges if one.kind != layout.NOTHING),
        silenced=tuple(one for one in exchanges if one.kind == layout.NOTHING),
        card=card,
        importances=importances or (card.importances if card else {}),
        features=_features(folder, reader),
        audit=reader.json(layout.PRUNING_FILE, lambda data: _audit(data, folder.spec)),
        retrained=_retrained(folder, reader, layout.result_file("*")),
        from_scratch=_retrained(folder, reader, layout.scratch_file("*")),
        views=_views(folder),
        context_times=tuple(
            reader.journal(layout.CONTEXTS_FILE, lambda line: read_as(ContextTimes, line))
        ),
        seconds=_seconds(folder),
        origin=None if origin is None else _with_known_times(origin, verified),
        halving_winner=read_winner(folder),
        halving_left=read_left(folder),
        duration=read_duration(folder),
    )


class _Reader:
    """Reads files that may be missing, and names those that are damaged."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def json(self, name: str, parse: Callable[[Any], T]) -> T | None:
        """A parsed JSON file, or None where there is none."""
        if not self._folder.has(name):
            return None
        data = self._folder.read_json(name)
        return self.parsed(name, lambda: parse(data))

    def journal(self, name: str, parse: Callable[[Any], T]) -> list[T]:
        """The parsed lines of a journal."""
        return [
            self.parsed(f"{name}, line {number}", lambda line=line: parse(line))  # type: ignore[misc]
            for number, line in enumerate(self._folder.read_journal(name), start=1)
        ]

    def file(self, name: str, parse: Callable[[Path], T]) -> T | None:
        """What is read from a file, or None where there is none."""
        file = self._folder.path / name
        return self.parsed(name, lambda: parse(file)) if file.exists() else None

    def parsed(self, name: str, parse: Callable[[], T]) -> T:
        """What `parse` gives; whatever it trips over means that the file is damaged."""
        try:
            return parse()
        except (*UNREADABLE, NasError, OSError) as error:
            path = self._folder.path
            raise DamagedRunError(
                f"{path}/{name} is damaged ({error}); {resuming(path)} makes it anew"
            ) from error


# -- one file each ------------------------------------------------------------------------------


def _numbers(data: Any) -> dict[str, float]:
    return {str(name): finite_number(value) for name, value in data.items()}


def _sizes(data: Any) -> dict[str, int]:
    if "evaluator" in data:  # who needs no data
        return {}
    return {split: int(data[f"num_{split}"]) for split in ("train", "valid")}


def _origin(spec: SearchSpec, reader: _Reader, costs: Sequence[KnownCost]) -> Origin | None:
    """The checkpoint of a run, with its own scores and what it costs as far as is known."""
    start = spec.start
    if start is None:
        return None

    def parse(data: Any) -> Origin:
        network = Architecture.from_json(data["architecture"])
        asked = (*spec.objectives, *spec.limits)
        scores = _numbers(data["values"])
        (entry,) = with_costs(spec.space, [(network, scores)], costs, asked)
        order = tuple(int(number) for number in data["layer_order"])
        if QUALITY not in scores or sorted(order) != list(range(len(order))):
            raise ValueError("it lacks a quality, or an order of all layers")
        errors = reader.json(layout.DISTILLED_ERRORS_FILE, _numbers) or {}
        name = Path(start.folder).name
        rated = entry.with_rates(asked, spec.space)
        return Origin(name, rated, order, errors, _by_distance(data.get("by_distance", {})))

    return reader.json(layout.BASELINE_FILE, parse)


def _with_known_times(origin: Origin, verified: Sequence[FrontEntry]) -> Origin:
    """The checkpoint with its costs as they were measured last; its scores are its own."""
    for entry in verified:
        if entry.id == origin.entry.id:
            own = origin.entry
            costs = {name: value for name, value in entry.measured.items() if name in COSTS}
            before = {name: why for name, why in own.doubtful.items() if name not in costs}
            known = replace(
                own,
                measured={**own.measured, **costs},
                doubtful={**before, **entry.doubtful},
            )
            return replace(origin, entry=known)
    return origin


def _entry(data: Any, space: GenotypeSpace) -> FrontEntry:
    network = space.network(data["architecture"])
    return FrontEntry(
        network.id,
        network,
        _numbers(data["measured"]),
        _numbers(data["predicted"]),
        {str(name): str(why) for name, why in data.get("doubtful", {}).items()},
    )


def _verified(data: Any, space: GenotypeSpace) -> FrontEntry | None:
    """A measured network; None for one that could not be evaluated."""
    return None if failed(data) else _entry(data, space)


def _held(data: Any) -> Any:
    """A round of timing in sessions, as it stands there, if it can be read."""
    confirmed_by_id([data])
    return data


def _observed(
    spec: SearchSpec, reader: _Reader, costs: Sequence[KnownCost]
) -> tuple[FrontEntry, ...]:
    asked = (*spec.objectives, *spec.limits)

    def parse(line: Any) -> tuple[Network, dict[str, float]] | None:
        if failed(line):
            return None
        quality = {name: line[name] for name in line if name not in ("id", "architecture")}
        if QUALITY not in quality:
            raise ValueError("a network has no quality")
        return spec.domain.network(line["architecture"]), _numbers(quality)

    lines = list(filter(None, reader.journal(layout.OBSERVATIONS_FILE, parse)))
    return reader.parsed(
        layout.OBSERVATIONS_FILE, lambda: with_costs(spec.domain, lines, costs, asked)
    )


def _there(clocks: Sequence[Objective], read: Callable[[Objective], T | None]) -> dict[str, T]:
    """Timed objective → what was read of it, as far as there is anything."""
    found = {one.name: read(one) for one in clocks}
    return {name: one for name, one in found.items() if one is not None}


def _times(name: str, profile: TimingJournal | None, fitted: LatencyPredictor | None) -> KnownCost:
    entries = {} if profile is None else profile.entries
    times = {identity: one.value for identity, (_, one) in entries.items()}
    doubtful = {key: one.doubtful for key, (_, one) in entries.items() if one.doubtful}
    return KnownCost(name, times, fitted, doubtful)


def _measured(reader: _Reader, cost: Objective) -> KnownCost:
    lines = reader.journal(
        layout.measured_file(cost.stage),
        lambda line: (str(line["id"]), finite_number(line[cost.name])),
    )
    fitted = reader.json(layout.predictor_file(cost.stage), LatencyPredictor.from_json)
    return KnownCost(cost.name, dict(lines), fitted)


def _population(spec: SearchSpec, reader: _Reader) -> tuple[FrontEntry, ...]:
    """The best of everything that evolution scored, as many as survive a generation."""
    name = layout.POPULATION_FILE
    generations = reader.journal(name, Generation.from_json)
    if not generations:
        return ()
    pruned = reader.file(
        layout.PRUNED_SPACE_FILE, lambda file: spec.parsed(file.read_text("utf-8"), file.name)
    )
    return reader.parsed(name, lambda: _survivors(spec, pruned or spec.domain, generations))


def _survivors(
    spec: SearchSpec, space: GenotypeSpace, generations: list[Generation]
) -> tuple[FrontEntry, ...]:
    rows = np.concatenate([part.genotypes for part in generations])
    points = np.concatenate([part.objectives for part in generations])
    violations = np.concatenate([part.violations for part in generations])
    if points.shape[1] != len(spec.objectives) or rows.shape[1] != len(space.slots):
        raise ValueError("its rows belong to another space or other objectives")
    if (rows < 0).any() or (rows >= space.num_choices).any():
        raise ValueError("a genotype lies outside the space")
    ranks = constrained_ranks(points, violations)
    order = np.lexsort((-crowding_distance(points, ranks), ranks))
    best = order[violations[order] == 0][: spec.budget.evolution.population]
    entries = []
    counts = _counts(space, rows[best], (*spec.objectives, *spec.limits))
    for network, point, known in zip(space.decode(rows[best]), points[best], counts, strict=True):
        guess = {
            name: OBJECTIVES[name].minimised(number)
            for name, number in zip(spec.objectives, point.tolist(), strict=True)
        }
        entries.append(FrontEntry(network.id, network, known, guess))
    return tuple(entries)


def _front(data: Any, space: GenotypeSpace) -> Front:
    front = Front.from_json(data, space.network)
    for entry in front.entries:
        _numbers(entry.measured)
        _numbers(entry.predicted)
    return front


def _features(folder: RunFolder, reader: _Reader) -> dict[str, GeneEffects]:
    needed = [layout.RANKER_FILE]
    needed += [layout.predictor_file(OBJECTIVES[name].stage) for name in folder.spec.timed]
    if folder.record("rank") is None or not all(map(folder.has, needed)):
        return {}
    return reader.parsed(needed[0], lambda: read_features(folder))


def _audit(data: Any, spec: SearchSpec) -> PruningAudit:
    protected = data.get("vetoes", {})  # earlier versions had none
    return PruningAudit(
        size=int(data["size"]),
        refused=data["refused"],
        cuts=read_as(tuple[Cut, ...], data["cuts"]),
        kept=read_as(tuple[Kept, ...], data["kept"]),
        protected=checked_protected(spec.space, protected) if protected else {},
    )


def _retrained(folder: RunFolder, reader: _Reader, which: str) -> tuple[Retrained, ...]:
    names = folder.found(which)
    return tuple(result for name in names if (result := reader.json(name, _result)))


def _views(folder: RunFolder) -> tuple[OmniViews, ...]:
    ids = [Path(name).stem for name in folder.found(layout.attention_file("*"))]
    return tuple(view for one in ids if (view := read_views(folder, one)))


def _result(data: Any) -> Retrained:
    architecture = Architecture.from_json(data["architecture"])
    test, valid = _scores(data, "test_"), _scores(data, "valid_")
    headlines = [name for name in HEADLINES if name in test]
    if not headlines or headlines[0] not in valid or "loss" not in valid:
        raise ValueError("it lacks scores")
    return Retrained(
        id=architecture.id,
        architecture=architecture,
        headline=headlines[0],
        test_scores=test,
        valid_scores=valid,
        epochs=int(data["epochs"]),
        seed=int(data["seed"]),
        by_distance=_by_distance(data.get("by_distance", {})),
        loss_error=finite_number(data["loss_error"]) if "loss_error" in data else None,
        asked_epochs=int(data["asked_epochs"]) if "asked_epochs" in data else None,
    )


def _by_distance(data: Any) -> dict[str, tuple[Stretch, ...]]:
    return {name: read_as(tuple[Stretch, ...], data[name]) for name in DISTANCES if name in data}


def _scores(data: Any, split: str) -> dict[str, float]:
    names = [name for name in data if name.startswith(split)]
    return {name.removeprefix(split): finite_number(data[name]) for name in names}


def _seconds(folder: RunFolder) -> dict[str, float]:
    single = [name for prefix in OF_NETWORKS for name in folder.finished(f"{prefix}*")]
    wanted = [stage.name for stage in search_stages(folder.spec)]
    records = {stage: folder.record(stage) for stage in (*wanted, *single)}
    return {stage: record.seconds for stage, record in records.items() if record is not None}


# -- what observed networks cost ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class KnownCost:
    """A cost that takes a measurement.

    Attributes:
        name: of the metric.
        measured: network id → value.
        predictor: of the other networks; None before there is one.
        doubtful: network id → why its measured value should not be believed.
    """

    name: str
    measured: Mapping[str, float]
    predictor: LatencyPredictor | None
    doubtful: Mapping[str, str] = field(default_factory=dict)

    def predicted(self, space: GenotypeSpace, rows: Genotypes) -> list[dict[str, float]]:
        """Value and standard deviation by name, for each row ``(N, S)``; empty without predictor.

        Raises:
            DataError: when the predictor was fitted to another space.
        """
        if self.predictor is None:
            return [{} for _ in rows]
        means, deviations = self.predictor.predict(encode_features(space, rows))
        names = (self.name, OBJECTIVES[self.name].std_name)
        return [
            dict(zip(names, pair, strict=True))
            for pair in zip(means.tolist(), deviations.tolist(), strict=True)
        ]


def with_costs(
    space: GenotypeSpace,
    networks: Sequence[tuple[Network, Mapping[str, float]]],
    costs: Sequence[KnownCost],
    asked: Collection[str] = (),
) -> tuple[FrontEntry, ...]:
    """Networks and what was measured of their quality, with what they cost as far as is known.

    A cost that was not measured is predicted; parameters and FLOPs are counted, and so is what else
    can be of what is `asked` for.

    Raises:
        UsageError: when a network is not of the space.
        DataError: when a predictor was fitted to another space.
    """
    rows = space.encode([network for network, _ in networks])
    entries = [
        FrontEntry(network.id, network, {**quality, **counts}, {})
        for (network, quality), counts in zip(networks, _counts(space, rows, asked), strict=True)
    ]
    for cost in costs:
        guesses = cost.predicted(space, rows)
        entries = [_with(entry, cost, guess) for entry, guess in zip(entries, guesses, strict=True)]
    return tuple(entries)


def _counts(
    space: GenotypeSpace, rows: Genotypes, asked: Collection[str]
) -> list[dict[str, float]]:
    """What is counted of each row ``(N, S)``, by name."""
    found = exact(space, rows, asked)
    if not found:
        return [{} for _ in rows]
    columns = [values.tolist() for values in found.values()]
    return [dict(zip(found, values, strict=True)) for values in zip(*columns, strict=True)]


def _with(entry: FrontEntry, cost: KnownCost, guess: Mapping[str, float]) -> FrontEntry:
    known = cost.measured.get(entry.id)
    if known is None:
        return replace(entry, predicted={**entry.predicted, **guess})
    why = cost.doubtful.get(entry.id)
    doubtful = entry.doubtful if why is None else {**entry.doubtful, cost.name: why}
    return replace(entry, measured={**entry.measured, cost.name: known}, doubtful=doubtful)
