"""Fronts of several runs beside each other: what they have in common, and what may be compared.

Heights of fronts compare where quality is measured alike on the same data, times where they were
taken on the same device, and costs where they are of the same workload. A hypervolume is a share
of a box, so it says something beside another one only if both are of the same objectives and the
box is the same: it is computed anew, up to the worst of all reference points.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nas.objectives import OBJECTIVES, QUALITY, base_workload, timed_workload
from nas.objectives.size import FLOPS
from nas.request.picks import Condition
from nas.results.contents import Retrained, RunContents
from nas.results.partial_front import box_shares
from nas.results.tables import columns_of, genes_of
from nas.search.front import Front, FrontEntry, minimised, points_of
from nas.search.pareto import hypervolume
from search_spaces.settings import ImageInput
from search_spaces.space import Choice


@dataclass(frozen=True)
class ComparedRun:
    """A run that has a front, also one so far.

    Attributes:
        title: what it is called.
        contents: the run; its front is there.
        data: digest of its data, where that is known.
    """

    title: str
    contents: RunContents
    data: str | None

    @property
    def front(self) -> Front:
        """Its front."""
        assert self.contents.front is not None
        return self.contents.front


@dataclass(frozen=True)
class ComparedNetwork:
    """A network of one of the fronts, or one that a winner is held against.

    Attributes:
        run: place of its run among those compared, from 0.
        entry: the network.
        result: of its training from scratch.
        baseline: whether it is a baseline, of which the search itself knows no quality.
    """

    run: int
    entry: FrontEntry
    result: Retrained | None
    baseline: bool = False


@dataclass(frozen=True)
class Comparison:
    """Runs beside each other.

    Attributes:
        runs: in the order that was asked for.
        objectives: those that all have, quality first.
        alike: those of them that share a chart and a column: all but a quality that is measured
            differently.
        difference: why hypervolumes and heights say nothing beside each other; None where they do.
        reference: the one point that hypervolumes are measured up to; empty with a difference.
        hypervolumes: of each run, shares of the same box; empty with a difference.
    """

    runs: tuple[ComparedRun, ...]
    objectives: tuple[str, ...]
    alike: tuple[str, ...]
    difference: str | None
    reference: Mapping[str, float]
    hypervolumes: tuple[float, ...]

    def networks(
        self, conditions: Sequence[Condition] = (), *, retrained: bool = False
    ) -> list[ComparedNetwork]:
        """The networks of all fronts, and behind those of each its baselines.

        Args:
            conditions: that they meet; a network of which a value is not known meets none on it.
            retrained: whether only those that were trained from scratch.
        """
        found = []
        for place, run in enumerate(self.runs):
            results = {one.id: one for one in run.contents.retrained}
            others = {one.entry.id: one.entry for one in run.front.baselines}
            entries = {entry.id: entry for entry in run.front.entries}
            for entry in (entries | {k: v for k, v in others.items() if k not in entries}).values():
                known = entry.values
                met = all(c.name in known and not c.missed_by(known) for c in conditions)
                if met and (entry.id in results or not retrained):
                    result, plain = results.get(entry.id), entry.id in others
                    found.append(ComparedNetwork(place, entry, result, plain))
        return found


def compare_runs(runs: Sequence[ComparedRun]) -> Comparison:
    """Runs beside each other; there may be one, or none."""
    if not runs:
        return Comparison((), (), (), None, {}, ())
    shared = [set(run.contents.spec.objectives) for run in runs]
    names = [n for n in runs[0].contents.spec.objectives if all(n in one for one in shared)]
    measures = {_measure(run.contents) for run in runs}
    alike = [name for name in names if name != QUALITY or len(measures) == 1]
    difference = _difference(runs)
    reference: Mapping[str, float] = {}
    volumes: Sequence[float] = ()
    if difference is None:
        reference, volumes = common_hypervolumes([run.front for run in runs])
    return Comparison(
        tuple(runs), tuple(names), tuple(alike), difference, reference, tuple(volumes)
    )


def _difference(runs: Sequence[ComparedRun]) -> str | None:
    """What the runs differ in that would make a common box meaningless, in a sentence."""
    facts: dict[str, list[Hashable]] = {
        "different objectives": [frozenset(run.contents.spec.objectives) for run in runs],
        "different measures of quality": [_measure(run.contents) for run in runs],
        "different data": [(run.contents.spec.dataset, run.data) for run in runs],
        "different devices": [_timed_on(run.contents) for run in runs],
        "different workloads": [_worked(run.contents) for run in runs],
    }
    found = [name for name, values in facts.items() if len(set(values)) > 1]
    if not found:
        return None
    return (
        f"these searches have {' and '.join(found)}, so hypervolumes say nothing beside each other"
    )


def _measure(run: RunContents) -> Hashable:
    """What the quality of a run is."""
    return run.spec.quality, run.spec.evaluator, run.spec.objective(QUALITY).unit


def _worked(run: RunContents) -> Hashable:
    """What networks of a run do while a cost is taken, as far as its costs depend on that."""
    if run.spec.evaluator is not None:
        return None
    space, found = run.space, []
    pictures = isinstance(space.model.input, ImageInput)  # whose length follows from the network
    for one in (OBJECTIVES[name] for name in run.spec.objectives):
        if one.name == FLOPS.name:
            found.append(None if pictures else space.workload.get("source"))
        elif one.of_workload and one.name != QUALITY:
            work = timed_workload(space, one.mode) if one.timed else base_workload(space)
            found.append(replace(work, source_length=1) if pictures else work)
    return tuple(found)


def _timed_on(run: RunContents) -> Hashable:
    """What the times of a run are of; the same for all runs that time nothing."""
    known = [OBJECTIVES[name] for name in run.spec.objectives if name in OBJECTIVES]
    if not any(one.predicted or one.rate_of for one in known):
        return None
    labels = frozenset(profile.header.device.label for profile in run.profiles.values())
    foreign = run.front.predicted_for if run.front is not None else {}
    return run.spec.device, labels, frozenset(foreign.values())


def common_hypervolumes(fronts: Sequence[Front]) -> tuple[dict[str, float], list[float]]:
    """Hypervolumes of fronts with the same objectives, as shares of one box.

    Args:
        fronts: at least one.

    Returns:
        The box's corner by objective, the worst of all references; and the shares, 0 to 1.
    """
    objectives = fronts[0].objectives
    names = [one.name for one in objectives]
    corners = []
    for front in fronts:
        known = {o.name: r for o, r in zip(front.objectives, front.reference, strict=True)}
        corners.append(minimised([known[name] for name in names], objectives))
    corner = np.max(corners, axis=0)
    reference = dict(zip(names, minimised(corner.tolist(), objectives).tolist(), strict=True))
    origin = min(front.origin for front in fronts)
    volumes = []
    for front in fronts:
        points = box_shares(points_of(front.entries, objectives), corner, origin)
        volumes.append(round(hypervolume(points, np.ones(len(names))), 9))
    return reference, volumes


def gene_summaries(run: RunContents, entry: FrontEntry) -> dict[str, Choice | float]:
    """A network in a few numbers, as many for any depth.

    A gene of the whole network stands as it is. Of one that each layer has, there is the mean of
    sizes, or the number of layers with each kind.
    """
    genes = genes_of(run, entry.network)
    layers: dict[str, list[Choice]] = {}
    for slot in run.spec.domain.slots:
        value = genes[slot.name]
        layers.setdefault(slot.gene_name, []).extend([] if value is None else [value])
    found: dict[str, Choice | float] = {}
    for slot in run.spec.domain.slots:
        name, values = slot.gene_name, layers[slot.gene_name]
        if slot.name == name:
            found |= dict(zip([name], values, strict=False))
        elif all(isinstance(choice, int | float) for choice in slot.choices):
            numbers = [float(one) for one in values]
            found |= {f"{name} (mean)": float(np.mean(numbers))} if numbers else {}
        else:
            found |= {f"{name} = {one}": values.count(one) for one in slot.choices}
    return found


def rows(
    made: Comparison, networks: Sequence[ComparedNetwork], jobs: Sequence[str]
) -> list[dict[str, object]]:
    """Networks as rows of a table with the same columns.

    Args:
        made: the comparison.
        networks: of it.
        jobs: id of each run's job.
    """
    found = []
    for one in networks:
        run = made.runs[one.run]
        scores = {} if one.result is None else one.result.test_scores
        row: dict[str, object] = {
            "job": jobs[one.run],
            "title": run.title,
            "id": one.entry.id,
            "baseline": one.baseline,
            **{f"test_{name}": value for name, value in scores.items()},
        }
        measured, genes = one.entry.measured, gene_summaries(run.contents, one.entry)
        rest: dict[str, object] = {
            **{f"predicted_{name}": value for name, value in one.entry.predicted.items()},
            "doubtful": " ".join(one.entry.doubtful),
        }
        # Costs that an evaluator tells, and genes of one's own, may be called as a column is.
        costs = columns_of(measured, {*row, *rest}, "cost")
        row |= {costs[name]: value for name, value in measured.items()} | rest
        columns = columns_of(genes, row, "gene")
        row |= {columns[name]: value for name, value in genes.items()}
        found.append(row)
    names = dict.fromkeys(name for row in found for name in row)
    return [{name: row.get(name) for name in names} for row in found]
