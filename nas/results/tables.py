"""A run as pandas DataFrames, one row for each network, observation or stage.

::

    run = nas.results.open("runs/digits-1")
    run.front[["quality", "latency_ms", "params"]]
    run.networks.to_csv("networks.csv")
    run.observations.to_parquet("observations.parquet")

A run that is not finished has the rows that are known so far. ``docs/run_folder.md`` tells what
stands in each column, and in which unit. pandas is imported when the first table is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas.objectives import OBJECTIVES, QUALITY, uncertainty_name
from nas.results.contents import RunContents
from nas.results.partial_front import PartialFront, partial_front
from nas.results.reader import read_contents
from nas.results.state import open_run, stages_of
from nas.run.events import StageFinished, StageStarted
from nas.run.folder import RunFolder
from nas.run.stages import stage_label
from nas.search.front import FrontEntry, as_rows
from search_spaces.architecture import Architecture
from search_spaces.genotypes import Network
from search_spaces.space import Slot

if TYPE_CHECKING:
    from pandas import DataFrame

INTEGERS = tuple(name for name, one in OBJECTIVES.items() if one.whole)
FLAGS = ("on_front", "picked", "retrained")
TIMES = ("started", "ended")
TRIES = "tries"
TEXTS = ("id", "doubtful", "source", "failed", "reason", "stage", "label", "state")


class RunResults:
    """What a run has found, as tables; the run is read once, when this is made.

    Args:
        run: a run folder, or its name in ``runs``.

    Raises:
        UsageError: when there is no such run.
        DamagedRunError: for a file of the run that cannot be read, naming it.
    """

    def __init__(self, run: str | Path) -> None:
        folder = open_run(str(run))
        self.contents: RunContents = read_contents(folder)
        self._found: PartialFront = partial_front(self.contents)
        self._times = _times(folder)
        picked, front = self.contents.picked, self.contents.front
        self._stages = stages_of(
            folder,
            front,
            None if picked is None else picked.id,
            unpicked=front is not None and picked is None,
        )

    @property
    def final(self) -> bool:
        """Whether the front is the run's result, and not of what was measured so far."""
        return self.contents.front is not None

    @cached_property
    def front(self) -> DataFrame:
        """The networks that nothing dominates, by id; best quality first."""
        return self._networks({"front": self._found.entries})

    @cached_property
    def networks(self) -> DataFrame:
        """Every network that the run has looked at, by id.

        ``source`` tells where from: ``front``, ``verified`` and ``observed`` networks were
        measured, those of the last ``population`` only predicted, and of each ``baseline`` only
        what it costs was measured. Networks trained from scratch have their scores in ``test_…``
        and ``retrained_valid_…``.
        """
        run = self.contents
        beside = () if run.front is None else run.front.baselines
        return self._networks(
            {
                "front": self._found.entries,
                "verified": run.verified,
                "observed": run.observed,
                "population": run.population,
                "baseline": [one.entry for one in beside if one.plain],
            }
        )

    @cached_property
    def observations(self) -> DataFrame:
        """The networks whose quality was measured for the ranker, by id, in order.

        Those that could not be evaluated come last, with ``failed``, what kind of failure it was,
        its ``reason`` and the number of ``tries``.
        """
        rows = self._rows(self.contents.observed)
        rows += [
            {
                "id": one.network.id,
                **self._genes(one.network),
                "failed": one.failure.kind,
                "reason": one.failure.reason,
                TRIES: one.failure.tries,
            }
            for one in self.contents.failed
        ]
        return _frame(rows, ("id", "doubtful", "failed", "reason", TRIES))

    @cached_property
    def timeline(self) -> DataFrame:
        """The stages of the run as ``nas show`` lists them, those to come included, by name.

        ``state`` is ``done`` or ``to do``; ``told`` are the seconds that were told before it began;
        ``started`` and ``ended`` are of the last time.
        """
        run = self.contents
        rows = [
            {
                "stage": stage,
                "label": stage_label(stage),
                "state": "done" if stage in run.seconds else "to do",
                "seconds": run.seconds.get(stage),
                "told": run.told.told.get(stage),
                **self._times.get(stage, {}),
            }
            for stage in dict.fromkeys([*self._stages, *run.seconds])
        ]
        return _frame(rows, ("stage", "label", "state", "seconds", "told", "started", "ended"))

    def _networks(self, groups: Mapping[str, Sequence[FrontEntry]]) -> DataFrame:
        """Each network once, from the first group that has it."""
        run = self.contents
        sources: dict[str, tuple[str, FrontEntry]] = {}
        for source, entries in groups.items():
            for entry in entries:
                sources.setdefault(entry.id, (source, entry))
        on_front = {entry.id for entry in self._found.entries}
        trained = {
            one.id: {f"test_{name}": value for name, value in one.test_scores.items()}
            | {f"retrained_valid_{name}": value for name, value in one.valid_scores.items()}
            for one in run.retrained
        }
        rows = self._rows([entry for _, entry in sources.values()])
        for row in rows:
            row["source"] = sources[row["id"]][0]
            row["on_front"] = row["id"] in on_front
            row["picked"] = run.picked is not None and row["id"] == run.picked.id
            row["retrained"] = row["id"] in trained
            row |= trained.get(row["id"], {})
        return _frame(rows, ("id", "doubtful", "source", *FLAGS))

    def _rows(self, entries: Sequence[FrontEntry]) -> list[dict[str, Any]]:
        rows = zip(self._plain_rows(entries), entries, strict=True)
        return [{**row, **self._genes(entry.network)} for row, entry in rows]

    def _plain_rows(self, entries: Sequence[FrontEntry]) -> list[dict[str, Any]]:
        """Without genes."""
        columns = self._cost_columns
        return as_rows(
            [
                replace(one, measured={columns.get(n, n): v for n, v in one.measured.items()})
                for one in entries
            ]
        )

    def _genes(self, network: Network) -> dict[str, Any]:
        genes = genes_of(self.contents, network)
        return {self._gene_columns[name]: value for name, value in genes.items()}

    @cached_property
    def _cost_columns(self) -> dict[str, str]:
        """Cost that an evaluator tells → its column, which in no table is called as another is."""
        run = self.contents
        if run.spec.evaluator is None:
            return {}
        guessed = [n for one in (QUALITY, *run.costs) for n in (one, uncertainty_name(one))]
        guesses = (f"predicted_{name}" for name in guessed)
        return columns_of(run.costs, {*FLAGS, *TIMES, *TEXTS, *guesses, TRIES}, "cost")

    @cached_property
    def _gene_columns(self) -> dict[str, str]:
        """Gene → its column, which in no table is called as another is."""
        run = self.contents
        entries = [*self._found.entries, *run.verified, *run.observed, *run.population]
        known = [name for row in self._plain_rows(entries)[:1] for name in row]
        genes = [slot.name for slot in run.spec.domain.slots]
        return columns_of(genes, {*known, *INTEGERS, *FLAGS, *TIMES, *TEXTS, TRIES}, "gene")


def columns_of(names: Iterable[str], taken: Iterable[str], prefix: str) -> dict[str, str]:
    """Name → its column, which no other has.

    Args:
        names: of genes or costs.
        taken: what other columns are called.
        prefix: that stands before a name, with an underscore, where another column is called so.
    """
    columns: dict[str, str] = {}
    others = set(taken)
    for name in names:
        column = name
        while column in others:
            column = f"{prefix}_{column}"
        others.add(column)
        columns[name] = column
    return columns


def genes_of(run: RunContents, network: Network) -> dict[str, Any]:
    """The genes of a network by name; None for those of layers that it has not."""
    space = run.spec.domain
    if isinstance(network, Architecture):
        return {slot.name: _gene(network, slot) for slot in run.space.slots}
    row = space.encode([network])
    pairs = zip(space.slots, row[0], space.active(row)[0], strict=True)
    return {slot.name: slot.choices[i] if there else None for slot, i, there in pairs}


def _gene(network: Architecture, slot: Slot) -> int | str | None:
    stack = network.encoder if slot.stack == "encoder" else network.decoder
    if stack is None:
        return None
    if slot.layer is not None:
        deep = slot.layer < len(stack.layers)
        return getattr(stack.layers[slot.layer], slot.gene) if deep else None
    return len(stack.layers) if slot.gene == "num_layers" else getattr(stack, slot.gene)


def _times(folder: RunFolder) -> dict[str, dict[str, float]]:
    """Stage → when it last began and ended, in seconds since 1970, as the events tell."""
    found: dict[str, dict[str, float]] = {}
    for told_at, event in folder.events():
        match event:
            case StageStarted(stage):
                found[stage] = {"started": told_at}
            case StageFinished(stage):
                found.setdefault(stage, {})["ended"] = told_at
    return found


def _frame(rows: Sequence[Mapping[str, Any]], always: Iterable[str]) -> DataFrame:
    """A table with the first of the columns that are always there as its index."""
    import pandas as pd

    names = list(dict.fromkeys([*always, *(name for row in rows for name in row)]))
    table = pd.DataFrame({name: _column([row.get(name) for row in rows], name) for name in names})
    return table.set_index(names[0])


def _column(values: Sequence[Any], name: str) -> Any:
    """One column in the type that its name and values ask for.

    Flags, times and texts go by its name, and so does a gene that no network has.
    """
    import pandas as pd

    if name in FLAGS:
        return pd.Series(values, dtype="bool")
    if name in TIMES:
        return pd.to_datetime(pd.Series(values, dtype="float64"), unit="s", utc=True)
    known = [value for value in values if value is not None]
    texts = name.endswith("attention") if not known else any(isinstance(v, str) for v in known)
    if name in TEXTS or texts:
        return pd.Series(values, dtype="str")
    counts = name in (*INTEGERS, TRIES) or name.startswith(("encoder.", "decoder."))
    if counts and all(value % 1 == 0 for value in known):  # an evaluator's need not be whole
        return pd.Series(values, dtype="Int64")
    return pd.Series(values, dtype="float64")
