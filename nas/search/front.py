"""The result of a run: networks that nothing dominates, as kept in ``pareto.json``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from nas.objectives import (
    EXTERNAL_QUALITY,
    OBJECTIVES,
    QUALITIES,
    QUALITY,
    SCORES,
    TIMED,
    Objective,
    rates,
)
from nas.objectives.latency_limits import DOUBT, ConfirmedLatency, keeps
from nas.objectives.quality import NOISE
from nas.request.picks import (
    BEST,
    CHEAPEST,
    KNEE,
    NAMES,
    SENSIBLE,
    SHORTEST_ID,
    WORDS,
    Condition,
    conditions_of,
    joined,
    saves,
    saving_of,
)
from nas.run.folder import RunFolder, resuming
from nas.run.layout import FRONT_FILE, HALVING_FILE, WINNER_FILE
from nas.search.pareto import hypervolume_share, knee_index, non_dominated
from search_spaces.architecture import Architecture, find_id
from search_spaces.errors import DamagedRunError, NasError, UsageError
from search_spaces.genes import GeneNetwork
from search_spaces.genotypes import GenotypeSpace, Network
from search_spaces.json_text import UNREADABLE, finite_number, read_as
from search_spaces.wording import mark

ReadNetwork = Callable[[Any], Network]

SCHEMA = 1
FOREIGN_SCHEMA = 2  # with predicted_for
EXTERNAL_SCHEMA = 3  # of networks that an evaluator of others knows, with origin
BASELINES_SCHEMA = 4  # with baselines, and with predicted_for where schema 2 has it
CHECKPOINT_SCHEMA = 5  # with checkpoint, and with predicted_for where schema 2 has it
BOTH_SCHEMA = 6  # with both
WITH_BASELINES = (BASELINES_SCHEMA, BOTH_SCHEMA)
WITH_CHECKPOINT = (CHECKPOINT_SCHEMA, BOTH_SCHEMA)

Role = Literal["largest", "nearest", "own", "checkpoint"]
ROLES: tuple[Role, ...] = get_args(Role)
NEAREST: Role = "nearest"
SAME_COST = 0.05  # a share of a cost below which it is called equal


@dataclass(frozen=True)
class FrontEntry:
    """One network of the front.

    Attributes:
        id: the network's id.
        network: the network.
        measured: name → value, every objective among them.
        predicted: name → value, as far as something was predicted; an objective that could not be
            measured, because the device is elsewhere, counts as it was predicted.
        doubtful: name → why its measured value should not be believed. Such a value keeps no
            limit, and decides no pick as long as there are others.
    """

    id: str
    network: Network
    measured: Mapping[str, float]
    predicted: Mapping[str, float]
    doubtful: Mapping[str, str] = field(default_factory=dict)

    @property
    def architecture(self) -> Architecture:
        """The network, which is one of this project's.

        Raises:
            UsageError: when it is one that only an evaluator of others knows.
        """
        if not isinstance(self.network, Architecture):
            raise UsageError(
                f"the network {self.id} is known to the evaluator of its search alone: it cannot "
                "be built here"
            )
        return self.network

    def value(self, name: str) -> float:
        """What the network is known by: measured, or else predicted."""
        return self.measured[name] if name in self.measured else self.predicted[name]

    def minimised(self, name: str) -> float:
        """What it is compared by: its value as one of which less is better."""
        return OBJECTIVES[name].minimised(self.value(name))

    def trained(self, quality: float) -> Self:
        """The entry with the quality that it reached when it was trained after the search."""
        return replace(self, measured={**self.measured, QUALITY: quality})

    def with_rates(self, names: Collection[str], space: GenotypeSpace) -> Self:
        """The entry with those of the named objectives that follow from its times.

        Args:
            names: of objectives, see `nas.objectives.rates`.
            space: of the network.
        """
        doubts = {
            name: self.doubtful[OBJECTIVES[name].rate_of]
            for name in names
            if OBJECTIVES[name].rate_of in self.doubtful
        }
        return replace(
            self,
            measured={**self.measured, **rates(self.measured, names, space)},
            predicted={**self.predicted, **rates(self.predicted, names, space)},
            doubtful={**self.doubtful, **doubts},
        )

    @property
    def values(self) -> dict[str, float]:
        """Everything known by name: what was measured, and what was only predicted."""
        return {**self.predicted, **self.measured}

    def to_json(self) -> dict[str, Any]:
        """The entry as it stands in ``pareto.json``; with ``doubtful`` where anything was timed."""
        timed = any(name in self.measured for name in TIMED)
        return {
            "id": self.id,
            "architecture": self.network.to_json(),
            "measured": dict(self.measured),
            "predicted": dict(self.predicted),
            **({"doubtful": dict(self.doubtful)} if timed else {}),
        }


@dataclass(frozen=True)
class Baseline:
    """A network to hold the winner against; its quality is that of its own training.

    Attributes:
        entry: the network, with its costs.
        roles: what it was chosen as: the largest plain network within the limits, the plain one
            nearest to the winner's cost, the user's own, or the checkpoint that was begun with.
    """

    entry: FrontEntry
    roles: tuple[Role, ...]

    @property
    def plain(self) -> bool:
        """Whether it is one of the space's plain networks; others may have other genes."""
        return not {"own", "checkpoint"}.intersection(self.roles)

    def to_json(self) -> dict[str, Any]:
        """As it stands in ``pareto.json`` and ``baselines.json``."""
        return {**self.entry.to_json(), "roles": list(self.roles)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], read: ReadNetwork) -> Self:
        """What `to_json` gave; raises as `Front.from_json` does."""
        roles = tuple(data["roles"])
        if not roles or not set(roles) <= set(ROLES):
            raise ValueError(f"{list(roles)} are no roles of a baseline")
        return cls(_read_entry(data, read), roles)


@dataclass(frozen=True)
class Front:
    """The front and its worth.

    Attributes:
        objectives: what was optimised.
        reference: one value per objective; a network there would be of no use.
        entries: sorted by the first objective, then by id.
        hypervolume: share, 0 to 1, of the box between zero and the reference that is dominated.
        predicted_for: metric → the device for which it was predicted where no network could be
            timed; empty where everything was measured.
        origin: the quality from which the box begins, where one may lie below 0.
        baselines: what the winner is held against.
        checkpoint: what the search began with, with its own scores, on the front or not; None
            without one, or where it could not be evaluated.
    """

    objectives: tuple[Objective, ...]
    reference: tuple[float, ...]
    entries: tuple[FrontEntry, ...]
    hypervolume: float
    predicted_for: Mapping[str, str] = field(default_factory=dict)
    origin: float = 0.0
    baselines: tuple[Baseline, ...] = ()
    checkpoint: FrontEntry | None = None

    @property
    def networks(self) -> tuple[FrontEntry, ...]:
        """All that can be trained: the front, and the baselines that are not on it."""
        known = {entry.id for entry in self.entries}
        others = (one.entry for one in self.baselines)
        return (*self.entries, *(entry for entry in others if entry.id not in known))

    def held_against(self, network: FrontEntry) -> Self:
        """The same with the baselines of one network: of the nearest ones the nearest to its cost.

        Every network that may win has its nearest one among the baselines of a search.
        """
        cost = self.objectives[1].name

        def distance(one: Baseline) -> float:
            return abs(one.entry.minimised(cost) - network.minimised(cost))

        near = [one for one in self.baselines if NEAREST in one.roles]
        mine = min(near, key=distance, default=None)
        narrowed = (
            one if one is mine else replace(one, roles=tuple(r for r in one.roles if r != NEAREST))
            for one in self.baselines
        )
        return replace(self, baselines=tuple(one for one in narrowed if one.roles))

    def points(self) -> NDArray[np.float64]:
        """The objectives, ``(N, M)``, all minimised."""
        return points_of(self.entries, self.objectives)

    def to_json(self) -> dict[str, Any]:
        """The content of ``pareto.json``."""
        objectives = [
            {**objective.to_json(), "reference": reference}
            for objective, reference in zip(self.objectives, self.reference, strict=True)
        ]
        more: dict[str, Any] = {}
        if self.predicted_for:
            more["predicted_for"] = dict(self.predicted_for)
        if any(isinstance(entry.network, GeneNetwork) for entry in self.entries):
            more["origin"] = self.origin
        if self.baselines:
            more["baselines"] = [one.to_json() for one in self.baselines]
        if self.checkpoint is not None:
            more["checkpoint"] = self.checkpoint.to_json()
        return {
            "schema": schema_of(more),
            "objectives": objectives,
            "front": [entry.to_json() for entry in self.entries],
            "hypervolume": self.hypervolume,
            **more,
        }

    @classmethod
    def from_json(cls, data: Any, read: ReadNetwork = Architecture.from_json) -> Self:
        """Read ``pareto.json``.

        Args:
            data: its content.
            read: makes a network of its JSON.

        Raises:
            DamagedRunError: when a part is missing or of another schema.
        """
        try:
            if data["schema"] not in range(SCHEMA, BOTH_SCHEMA + 1):
                raise DamagedRunError(
                    f"{FRONT_FILE} has schema {data['schema']}; this version reads {SCHEMA} to "
                    f"{BOTH_SCHEMA}"
                )
            objectives = tuple(_objective(item) for item in data["objectives"])
            foreign = _foreign(data)
            entries = tuple(_entry(item, objectives, foreign, read) for item in data["front"])
            if not entries:
                raise ValueError("the front is empty")
            return cls(
                objectives=objectives,
                reference=tuple(finite_number(item["reference"]) for item in data["objectives"]),
                entries=entries,
                hypervolume=finite_number(data["hypervolume"]),
                predicted_for=foreign,
                origin=finite_number(data.get("origin", 0.0)),
                baselines=tuple(_baselines(data, read)),
                checkpoint=_checkpoint(data, objectives, foreign, read),
            )
        except (*UNREADABLE, UsageError) as error:
            raise DamagedRunError(f"{FRONT_FILE} is damaged: {error}") from error


def schema_of(parts: Mapping[str, Any]) -> int:
    """The schema of a front as JSON, which follows from what is there beside the networks."""
    has = {part for part, value in parts.items() if value not in (None, [], {})}
    if has >= {"checkpoint", "baselines"}:
        return BOTH_SCHEMA
    by_part = {
        "checkpoint": CHECKPOINT_SCHEMA,
        "baselines": BASELINES_SCHEMA,
        "origin": EXTERNAL_SCHEMA,
        "predicted_for": FOREIGN_SCHEMA,
    }
    return next((schema for part, schema in by_part.items() if part in has), SCHEMA)


def _objective(item: Mapping[str, Any]) -> Objective:
    metric, unit = item["metric"], item["unit"]
    if not (isinstance(metric, str) and isinstance(unit, str)):
        raise ValueError(f"the objective {item['name']} has no metric and unit")
    qualities = {
        one.objective.metric: one.objective for one in (*QUALITIES.values(), EXTERNAL_QUALITY)
    }
    known = OBJECTIVES[item["name"]]
    if known.name == QUALITY:
        known = qualities.get(metric, known)
    symbol = known.symbol if unit == known.unit else ""
    return replace(known, metric=metric, unit=unit, symbol=symbol)


def _foreign(data: Mapping[str, Any]) -> dict[str, str]:
    foreign = data.get("predicted_for", {})
    may = data["schema"] in {*WITH_BASELINES, *WITH_CHECKPOINT}
    if not may and bool(foreign) != (data["schema"] == FOREIGN_SCHEMA):
        raise ValueError(
            f"predicted_for is a part of schema {FOREIGN_SCHEMA} and of schemas "
            f"{BASELINES_SCHEMA} to {BOTH_SCHEMA} alone"
        )
    return {str(name): str(device) for name, device in foreign.items()}


def _baselines(data: Mapping[str, Any], read: ReadNetwork) -> Iterator[Baseline]:
    there = data.get("baselines", [])
    if bool(there) != (data["schema"] in WITH_BASELINES):
        raise ValueError("baselines are a part of schemas {} and {} alone".format(*WITH_BASELINES))
    for item in there:
        yield Baseline.from_json(item, read)


def _checkpoint(
    data: Mapping[str, Any],
    objectives: Sequence[Objective],
    foreign: Mapping[str, str],
    read: ReadNetwork,
) -> FrontEntry | None:
    there = data.get("checkpoint")
    if (there is not None) != (data["schema"] in WITH_CHECKPOINT):
        raise ValueError("checkpoint is a part of schemas {} and {} alone".format(*WITH_CHECKPOINT))
    return None if there is None else _entry(there, objectives, foreign, read)


def _entry(
    item: Mapping[str, Any],
    objectives: Sequence[Objective],
    foreign: Mapping[str, str],
    read: ReadNetwork,
) -> FrontEntry:
    entry = _read_entry(item, read)
    for objective in objectives:
        known = objective.name in entry.measured
        if not known and not (objective.name in foreign and objective.name in entry.predicted):
            raise ValueError(f"the network {entry.id} has no measured {objective.name}")
    return entry


def _read_entry(item: Mapping[str, Any], read: ReadNetwork) -> FrontEntry:
    network = read(item["architecture"])
    if not isinstance(item["id"], str):
        raise ValueError(f"{item['id']!r} is not an id")
    measured = {name: finite_number(value) for name, value in item["measured"].items()}
    predicted = {name: finite_number(value) for name, value in item["predicted"].items()}
    doubtful = {str(name): str(why) for name, why in item.get("doubtful", {}).items()}
    return FrontEntry(item["id"], network, measured, predicted, doubtful)


def confirmed_by_id(
    rounds: Iterable[Mapping[str, Any]],
) -> dict[str, dict[str, ConfirmedLatency]]:
    """What was timed in sessions: architecture id → timed objective → what the sessions said.

    Args:
        rounds: lines of ``holding.jsonl``.
    """
    found: dict[str, dict[str, ConfirmedLatency]] = {}
    for line in rounds:
        for one in line["networks"]:
            identity, name, confirmed = ConfirmedLatency.from_json(one)
            found.setdefault(identity, {})[name] = confirmed
    return found


def in_sessions(
    entries: Iterable[FrontEntry],
    confirmed: Mapping[str, Mapping[str, ConfirmedLatency]],
    names: Collection[str],
    space: GenotypeSpace,
) -> list[FrontEntry]:
    """The entries, with what sessions said of their times in place of the single measurement.

    The rates that follow from their times are among their values.

    Args:
        entries: of networks of the space.
        confirmed: see `confirmed_by_id`.
        names: of objectives that are asked for.
        space: of the networks.
    """
    found = []
    for entry in entries:
        measured, doubtful = dict(entry.measured), dict(entry.doubtful)
        for name, one in confirmed.get(entry.id, {}).items():
            measured |= one.values(name)
            doubtful.pop(name, None)
            doubtful |= {name: one.doubtful} if one.doubtful else {}
        changed = replace(entry, measured=measured, doubtful=doubtful)
        found.append(changed.with_rates(names, space))
    return found


def value_text(entry: Mapping[str, Any], name: str) -> str:
    """A value of a network of a front as JSON, and whether it is only predicted, or doubtful."""
    if name in entry["measured"]:
        mark = " (doubtful)" if name in entry.get("doubtful", {}) else ""
        return f"{entry['measured'][name]:.4g}{mark}"
    return f"{entry['predicted'][name]:.4g} (predicted)"


def points_of(
    entries: Sequence[FrontEntry], objectives: Sequence[Objective]
) -> NDArray[np.float64]:
    """The objectives of the entries, ``(N, M)``, each as a value of which less is better."""
    rows = [[entry.minimised(o.name) for o in objectives] for entry in entries]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(objectives))


def as_rows(entries: Sequence[FrontEntry]) -> list[dict[str, Any]]:
    """The entries as rows of a table, with the same columns in the same order.

    ``id``, all that was measured, ``predicted_…``, and in ``doubtful`` the names of values that
    should not be believed, separated by blanks. What is not known is None.
    """
    measured = dict.fromkeys(name for entry in entries for name in entry.measured)
    predicted = dict.fromkeys(name for entry in entries for name in entry.predicted)
    return [
        {
            "id": entry.id,
            **{name: entry.measured.get(name) for name in measured},
            **{f"predicted_{name}": entry.predicted.get(name) for name in predicted},
            "doubtful": " ".join(entry.doubtful),
        }
        for entry in entries
    ]


def build_front(
    entries: Sequence[FrontEntry],
    objectives: Sequence[Objective],
    reference: Sequence[float],
    limits: Mapping[str, float],
    device: str = "",
    origin: float = 0.0,
) -> Front:
    """The networks within the limits that no other dominates.

    Args:
        entries: networks; of equal ones the first counts.
        objectives: what they are compared by.
        reference: one value per objective, as people read it.
        limits: name → largest allowed value, or smallest where more is better; see
            `nas.objectives.latency_limits.keeps`.
        device: name of the device for which objectives are predicted that were not measured.
        origin: the quality from which the box begins.

    Raises:
        NasError: when no network keeps the limits.
    """
    best = best_entries(entries, objectives, limits)
    if not best:
        wanted = ", ".join(limit_text(name, value) for name, value in limits.items())
        raise NasError(
            f"none of the {len(entries)} measured networks keeps {wanted}; search longer "
            f"({mark('preset')} standard) or {_ease(limits)}"
        )
    unique = {entry.id: entry for entry in best}.values()
    ordered = sorted(unique, key=lambda entry: (entry.measured[objectives[0].name], entry.id))
    points, corner = points_of(ordered, objectives), minimised(reference, objectives)
    points[:, 0], corner[0] = points[:, 0] - origin, corner[0] - origin
    volume = round(hypervolume_share(points, corner), 9)
    names = [objective.name for objective in objectives] + list(limits)
    foreign = {name: device for name in names if any(name not in e.measured for e in ordered)}
    return Front(tuple(objectives), tuple(reference), tuple(ordered), volume, foreign, origin)


def limit_text(name: str, value: float) -> str:
    """A limit for people: ``latency_ms ≤ 12``, ``tokens_per_s ≥ 100``."""
    return f"{name} {OBJECTIVES[name].sign} {value:g}"


def _ease(limits: Mapping[str, float]) -> str:
    """What to do with limits that nothing keeps."""
    words = {"lower" if OBJECTIVES[name].maximise else "raise" for name in limits}
    return f"{' or '.join(sorted(words, reverse=True))} the limit"


def minimised(values: Sequence[float], objectives: Sequence[Objective]) -> NDArray[np.float64]:
    """One value per objective ``(M,)``, each as a value of which less is better."""
    return np.array([one.minimised(v) for one, v in zip(objectives, values, strict=True)])


def best_entries(
    entries: Sequence[FrontEntry], objectives: Sequence[Objective], limits: Mapping[str, float]
) -> list[FrontEntry]:
    """The networks within the limits that no other dominates, in the order given; may be none."""
    kept = [e for e in entries if keeps(e.measured, e.predicted, limits, e.doubtful)]
    if not kept:
        return []
    good = non_dominated(points_of(kept, objectives))
    return [entry for entry, best in zip(kept, good, strict=True) if best]


def read_front(folder: RunFolder) -> Front:
    """The front of a run, with what its winner is held against.

    Raises:
        UsageError: when the run has none yet.
        DamagedRunError: when it cannot be read.
    """
    if not folder.has(FRONT_FILE):
        raise UsageError(f"{folder.path} has no front yet; {resuming(folder.path)} finishes it")
    return narrowed(
        Front.from_json(folder.read_json(FRONT_FILE), folder.spec.domain.network), folder
    )


def narrowed(front: Front, folder: RunFolder) -> Front:
    """The front with the baselines of what halving left, or before that of what is picked."""
    try:
        return front.held_against(winner(front, folder.spec.pick, read_left(folder)))
    except UsageError:  # nothing on the front is what the request picks
        return front


def read_winner(folder: RunFolder) -> str | None:
    """The id of the winner among the candidates; None where none was asked for, or yet.

    It is what successive halving left, or the plain network that was better in the end, or as good
    and no dearer, see `nas.stages.retrain.settle`.

    Raises:
        DamagedRunError: when it cannot be read.
    """
    left = read_left(folder)
    if left is None or not folder.has(WINNER_FILE):
        return left
    try:
        settled = read_as(dict[str, str], folder.read_json(WINNER_FILE))
        beside, settled_on = settled["left"], settled["winner"]
    except UNREADABLE as error:
        raise DamagedRunError(
            f"{folder.path / WINNER_FILE} is damaged ({error}): delete it, and nas resume makes it "
            "anew"
        ) from error
    return settled_on if beside == left else left  # of another halving


def read_left(folder: RunFolder) -> str | None:
    """The id of the candidate that successive halving left; None where none was asked for, or yet.

    Raises:
        DamagedRunError: when it cannot be read.
    """
    lines = folder.read_journal(HALVING_FILE) if folder.has(HALVING_FILE) else []
    return str(lines[-1]["winner"]) if lines and "winner" in lines[-1] else None


def winner(front: Front, how: str, left: str | None) -> FrontEntry:
    """The network that a search has chosen.

    Args:
        front: where from.
        how: what it picks, see `pick`; raises as that does.
        left: see `read_winner`; on the front or, where a plain network did best, beside it.
    """
    halved = next((entry for entry in front.networks if entry.id == left), None)
    return halved or pick(front, how)


def pick(front: Front, how: str) -> FrontEntry:
    """Choose one network.

    Args:
        front: where from.
        how: ``sensible`` (lowest first cost of those within the noise of the best, see `NOISE`),
            ``best`` (lowest loss), ``cheapest`` (lowest first cost), ``knee`` (the network
            furthest from the line between the ends of the front, see
            `nas.search.pareto.knee_index`), ``1.5x`` (the best of those whose first cost is at most
            1 / 1.5 of the checkpoint's, or without one of that of the network with the lowest loss,
            where that is doubtful also as predicted; the cheapest where there is none), conditions
            such as
            ``latency_ms<=12,params<=2e5`` (see `nas.request.picks`), or an id of the front.
            Conditions are on measured values, or predicted ones where the device is elsewhere. Of
            the networks that meet them the lowest in the first objective that has none is taken:
            the best quality under a limit, the cheapest with a quality. An id may be that of a
            baseline, too.

    Raises:
        UsageError: for an id that is not on the front, or conditions that none of its networks
            meets, naming the nearest.
    """
    if how == BEST:
        return _lowest(front.entries, QUALITY)
    if how == SENSIBLE:
        return _sensible(front)
    if how == CHEAPEST:
        name = front.objectives[1].name
        return _lowest(_believed(front, [name]), name)
    if how == KNEE:
        among = _believed(front, [objective.name for objective in front.objectives])
        return among[knee_index(points_of(among, front.objectives))]
    if (times := saving_of(how)) is not None:
        return _saving(front, times)
    known = dict.fromkeys(name for entry in front.entries for name in entry.measured)
    if conditions := conditions_of(how, list(known)):
        return _meeting(front, conditions)
    ids = {entry.id: entry for entry in front.networks}
    words = ", ".join(WORDS)
    what = (
        f"network on the front or beside it, none of {words}, and no condition like 'params<=2e5'"
    )
    return ids[find_id(how, ids, what, SHORTEST_ID)]


def _believed(front: Front, names: Iterable[str]) -> list[FrontEntry]:
    """The networks with no doubtful value among these; all where there is no other."""
    names = set(names)
    sure = [entry for entry in front.entries if not names & entry.doubtful.keys()]
    return sure or list(front.entries)


def _sensible(front: Front) -> FrontEntry:
    """The cheapest network whose quality is within the noise of the best.

    Noise is `NOISE` of the best value, and of the best score there can be where more is better: a
    point of accuracy or BLEU. The ranker's out-of-fold error would be too much of it: qualities of
    a front are measured, and on digits it is 43 % of the lowest loss (experiments/LOG.md,
    2026-11-24).
    """
    best = _lowest(front.entries, QUALITY).value(QUALITY)
    metric = front.objectives[0].metric
    score = next((one.best for one in QUALITIES.values() if one.objective.metric == metric), None)
    most = best + NOISE * (abs(best) if score is None else score)
    cost = front.objectives[1].name
    good = [entry for entry in _believed(front, [cost]) if entry.value(QUALITY) <= most]
    return _lowest(good, cost) if good else _lowest(front.entries, QUALITY)


def _saving(front: Front, times: float) -> FrontEntry:
    """The best network that is so many times cheaper than what a saving counts from.

    Where one of the two values is doubtful, what was predicted of both has to say the same: with
    most of a front timed beside other work, the few that were not would be a poor choice.
    """
    cost = front.objectives[1]
    name, whole = cost.name, front.checkpoint or _lowest(front.entries, QUALITY)

    def enough_by(values: Mapping[str, float], of: Mapping[str, float]) -> bool:
        return saves(values[name], of[name], times, maximise=cost.maximise)

    def believed(entry: FrontEntry) -> bool:
        if not enough_by(entry.values, whole.values):
            return False
        if name not in {*entry.doubtful, *whole.doubtful}:
            return True
        if name not in entry.predicted or name not in whole.predicted:
            return name not in entry.doubtful
        return enough_by(entry.predicted, whole.predicted)

    enough = [entry for entry in front.entries if believed(entry)]
    return _lowest(enough, QUALITY) if enough else _lowest(_believed(front, [name]), name)


def _lowest(entries: Sequence[FrontEntry], name: str) -> FrontEntry:
    return min(entries, key=lambda entry: (entry.minimised(name), entry.id))


def _meeting(front: Front, conditions: Sequence[Condition]) -> FrontEntry:
    """The lowest in the first objective without a condition, of those that meet all."""
    for condition in conditions:
        if any(condition.name not in entry.values for entry in front.entries):
            names = dict.fromkeys((*NAMES, *(one.name for one in front.objectives)))
            there = [n for n in names if all(n in entry.values for entry in front.entries)]
            raise UsageError(
                f"{condition.name} was not measured in this run; there are {', '.join(there)}"
            )

    asked = {condition.name for condition in conditions}

    def missed(entry: FrontEntry) -> float:
        values = dict(entry.values)
        for name in asked & entry.doubtful.keys():  # as a limit does, see `DOUBT`
            minimised = OBJECTIVES[name].minimised
            values[name] = minimised(DOUBT * minimised(values[name]))
        return sum(condition.missed_by(values) for condition in conditions)

    # A score of the validation split says the same as quality does.
    asked |= {QUALITY} if asked & set(SCORES) else set()
    free = [objective.name for objective in front.objectives if objective.name not in asked]
    good = [entry for entry in front.entries if missed(entry) == 0]
    if good:
        return _lowest(good, free[0] if free else QUALITY)
    near = min(front.entries, key=lambda entry: (missed(entry), entry.id))
    has = ", ".join(f"{c.name} {near.values[c.name]:.4g}" for c in conditions)
    raise UsageError(
        f"no network on the front has {joined(conditions)}; the nearest is {near.id} with {has}"
    )
