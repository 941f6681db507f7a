"""From the request of a search to its spec.

A request names things; where they are, only the machine knows that it is given to: a command on its
own machine finds files, a server what is registered on it. Both are a `Site`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from latency.workload import Workload
from nas.objectives import OBJECTIVES, check_bound_names, timed_workload
from nas.objectives.quality import copies
from nas.request import picks
from nas.request.halving import CANDIDATES
from nas.request.presets import budget_for, check_trainings, trained_here
from nas.request.protected_choices import NONE, check_layers, checked_protected
from nas.request.spec import (
    CHECKPOINT,
    PLAIN,
    SYNTHETIC,
    SearchRequest,
    SearchSpec,
    SearchTerms,
    SpaceSource,
    Start,
    build_spec,
)
from nas.request.workloads import own_workload, read_workload
from search_spaces.architecture import Architecture
from search_spaces.costs import totals
from search_spaces.errors import NasError, UsageError
from search_spaces.genes import GeneSpace, dump_genes, given_genes
from search_spaces.genotypes import GenotypeSpace
from search_spaces.loading import dump_space, parse_space
from search_spaces.plain import alone, plain_rows
from search_spaces.recall import recall_window
from search_spaces.space import SearchSpace
from search_spaces.space_form import space_from_source
from search_spaces.toml.source import TomlSource
from search_spaces.wording import mark

TEXT_TASKS = ("embedding", "language_modelling")
"""Whose data are texts and nothing else, once there is a checkpoint to read them."""
TELL_WORKLOADS = ("workload", "device_profile", "space_toml", "space", "start", "data")
"""The fields that a workload may come with; of several given the first one tells it."""


@dataclass(frozen=True, slots=True)
class AttachedProfile:
    """The part of a device profile that a search is for, which its run folder keeps.

    Attributes:
        workload: that it is for.
        workloads: that the part holds.
        digest: of the part.
        text: of the file.
    """

    workload: Workload
    workloads: tuple[Workload, ...]
    digest: str
    text: str


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """A checkpoint that a search begins with.

    Attributes:
        start: where it is, and its digest.
        space: around it.
        problem: why networks of another space cannot inherit from it; None when they can.
    """

    start: Start
    space: SearchSpace
    problem: Callable[[SearchSpace], str | None]


class Site(Protocol):
    """Where a request is given: it knows what the request only names."""

    def start(self, name: str) -> StartingPoint:
        """The checkpoint of that name, or in that folder."""

    def space(self, name: str) -> SearchSpace:
        """The space of that name, or in that file."""

    def made(self, data: str, hours: float | None, device: str) -> str:
        """The name of a space made for data of that name, to be searched for so many hours."""

    def data(self, name: str) -> Path:
        """The folder or file of that name."""

    def texts(self, path: Path, begun: StartingPoint) -> Path:
        """Data made of plain texts, as a checkpoint reads them; other data as they are."""

    def dataset(self, name: str, file: Path | None) -> Path | None:
        """The file or folder of a data set; `file` where one was named for it."""

    def device_profile(
        self, name: str, space: SearchSpace, again: str, workload: Workload | None
    ) -> AttachedProfile:
        """What a device profile knows of a space for a workload; `again` says how to make one."""

    def genes(self, name: str) -> GeneSpace:
        """The space of genes of that name, or in that file."""

    def architecture(self, name: str) -> Architecture:
        """The network of that file."""

    def evaluator(self, name: str) -> str:
        """The whole name of an evaluator, as it can be opened wherever the run is worked on."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A request with all that it names.

    Attributes:
        spec: of the run.
        space: which takes a while to read out of the spec again.
        profile: of a device, for the run folder.
    """

    spec: SearchSpec
    space: GenotypeSpace
    profile: AttachedProfile | None


def resolve(request: SearchRequest, site: Site) -> Resolved:
    """The spec of a search that is asked for.

    Raises:
        NasError: for what is not there, cannot be used or does not fit; its `field` is at fault.
    """
    if request.evaluator is not None:
        return _external(request, site, request.evaluator)
    return _own(request, site)


def _own(request: SearchRequest, site: Site) -> Resolved:
    """A search whose networks are trained here."""
    begun = None
    with blaming("start"):
        if request.start is not None:
            begun = site.start(request.start)
    made = None
    if begun is None and request.space is None and request.space_toml is None:
        with blaming("data"):
            made = site.made(str(request.data), request.hours, request.device)
    space = find_space(request, site, begun, made)
    space, profile = _with_workload(request, space, site, _again(request, begun, made))
    if space.task == "embedding" and space.model.class_token:
        with blaming("space" if request.space_toml is None else "space_toml"):
            raise UsageError(
                f"the networks of the space {space.name} embed texts and have a class token, with "
                "which they cannot be exported: leave class_token out, and write pooling = 'first' "
                "where texts begin with a token for it"
            )
    dataset, data = _data(request, space, site, reads=begun is not None)
    with blaming("settings"):
        budget = budget_for(space, request.preset, request.overrides)
        check_trainings(budget)
    with blaming("keep"):
        keep = checked_protected(space, request.keep)
        check_layers(space, keep)
    spec = build_spec(
        space_toml=dump_space(space),
        dataset=dataset,
        data=None if data is None else str(data),
        budget=budget,
        keep=keep,
        device_profile=None if profile is None else profile.digest,
        start=None if begun is None else begun.start,
        baseline=_baseline(request, space, site),
        **_terms(request),
        pick=request.pick or (picks.SENSIBLE if begun is None else picks.SAVING),
        retrain=request.retrain or _candidates(request),
    )
    with blaming("objectives"):
        for name in (*spec.objectives, *spec.limits):
            if (problem := OBJECTIVES[name].problem(space)) is not None:
                raise UsageError(problem)
    window = recall_window(space)
    with blaming("pick"):
        chosen = picks.read_pick(spec.pick, spec.costs)
        picks.check_scored(chosen, space.task, spec.quality, windowed=window is not None)
    if profile is not None:
        with blaming("device_profile"):
            _check_profile(spec, space, profile)
    if begun is not None and data is not None:
        with blaming("data"):  # last of all, for it may take a while
            texts = site.texts(data, begun)
        if texts != data:
            spec = spec.model_copy(update={"dataset": texts.name, "data": str(texts)})
    return Resolved(spec, space, profile)


def _with_workload(
    request: SearchRequest, space: SearchSpace, site: Site, again: str
) -> tuple[SearchSpace, AttachedProfile | None]:
    """The space with the workload that is asked for, and the device profile, if one is.

    `again` says how a profile of the space is made.

    Raises:
        NasError: also for a workload of the space's own that its networks cannot do; the field to
            blame is the one that it came with.
    """
    profile = None
    with blaming("workload"):
        given = request.workload
        workload = None if given is None else read_workload(space, given)
    with blaming("device_profile"):
        if request.device_profile is not None:
            profile = site.device_profile(request.device_profile, space, again, workload)
            workload = profile.workload
    if workload is not None:
        space = replace(space, workload=workload.to_json())
    if space.workload:
        given_by = (name for name in TELL_WORKLOADS if getattr(request, name) is not None)
        with blaming(next(given_by, "space")):
            own_workload(space)
    return space, profile


def _again(request: SearchRequest, begun: StartingPoint | None, made: str | None) -> str:
    """How a device profile of the space that is searched is made, in words."""
    named = request.space or made
    way = f"make one with nas profile --space {'FILE' if named is None else shlex.quote(named)}"
    if begun is not None and named is None and request.space_toml is None:
        folder = shlex.quote(begun.start.folder)
        way = f"write the space to a file with nas space from {folder} and {way}"
    if request.restrict:
        way += (
            f" and leave {mark('restrict')} out, or write the space that it leaves to a file, and "
            "profile and search that"
        )
    return way


# What a search of networks that an evaluator knows has nothing to do with.
OWN_NETWORKS = (
    "start",
    "dataset",
    "data",
    "restrict",
    "keep",
    "workload",
    "device_profile",
    "quality",
    "device",
    "deterministic",
    "baseline",
    "retrain",
)


def _external(request: SearchRequest, site: Site, evaluator: str) -> Resolved:
    """A search whose networks an evaluator knows."""
    _check_external(request)
    if request.space_toml is not None:
        with blaming("space_toml"):
            space = given_genes(request.space_toml, "space_toml")
    else:
        with blaming("space"):
            space = site.genes(request.space or "")
    with blaming("evaluator"):
        whole = site.evaluator(evaluator)
    return Resolved(external_spec(request, space, whole), space, None)


def _check_external(request: SearchRequest) -> None:
    """Refuse what only networks that are trained here have."""
    fields = {n: getattr(request, n) != SearchRequest.model_fields[n].default for n in OWN_NETWORKS}
    wrong = [(name, mark(name)) for name, given in fields.items() if given]
    wrong += [("settings", f"the setting {n}") for n in request.overrides if trained_here(n)]
    with blaming("objectives"):
        check_bound_names(request.costs)
    for name, what in wrong:
        with blaming(name):
            raise UsageError(
                f"{what} is for networks that are trained here, and those of this search are known "
                f"to {mark('evaluator')} alone: leave one of them out"
            )


def external_spec(request: SearchRequest, space: GeneSpace, evaluator: str) -> SearchSpec:
    """The spec of a search whose networks an evaluator knows.

    Args:
        request: what is asked for.
        space: the networks.
        evaluator: its whole name.

    Raises:
        UsageError: for what only networks of this project have.
    """
    _check_external(request)
    with blaming("settings"):
        budget = budget_for(None, request.preset, request.overrides)
    with blaming("pick"):
        how = picks.read_pick(request.pick or picks.SENSIBLE, request.costs)
        how.check_measured(request.costs, request.quality, counted=False)
        picks.check_scored(how, None)
    with blaming("space"):
        text = dump_genes(space)
    return build_spec(
        **{**_terms(request), "evaluator": evaluator},
        space_toml=text,
        dataset="",
        budget=budget,
        pick=request.pick or picks.SENSIBLE,
    )


def _terms(request: SearchRequest) -> dict[str, Any]:
    """What a spec takes over from the request as it is."""
    later = ("pick", "retrain")  # which the request may leave open
    return {name: getattr(request, name) for name in SearchTerms.model_fields if name not in later}


def _candidates(request: SearchRequest) -> int:
    """How many networks begin to train: one where others of its quality are not meant.

    Whoever picks wants that network, and one that saves so much of a checkpoint has no neighbours
    in quality that save as much.
    """
    return CANDIDATES if request.pick is None and request.start is None else 1


def _check_profile(spec: SearchSpec, space: SearchSpace, profile: AttachedProfile) -> None:
    """Refuse a device profile that nobody needs, or that lacks what is asked for.

    Raises:
        UsageError: saying what it lacks, and how it is made.
    """
    on_device = [one.name for one in OBJECTIVES.values() if one.predicted]
    asked = [name for name in on_device if spec.asks_for(name)]
    if not asked:
        raise UsageError(
            f"{mark('device_profile')} is for a search whose objectives or limits name "
            f"{' or '.join(on_device)}; given are {', '.join((*spec.objectives, *spec.limits))}"
        )
    for name in asked:
        one = OBJECTIVES[OBJECTIVES[name].rate_of or name]
        needed = timed_workload(space, one.mode)
        if needed not in profile.workloads:
            raise UsageError(
                f"the device profile tells nothing of {name}: make one with "
                f"nas profile --workload {needed.option}, beside its other workloads, or leave "
                f"{name} out"
            )


def _baseline(request: SearchRequest, space: SearchSpace, site: Site) -> Any:
    """What is trained beside the winner, see `SearchSpec.baseline`."""
    given = request.baseline
    with blaming("baseline"):
        if request.start is not None and given not in (PLAIN, NONE):
            raise UsageError(
                f"{mark('baseline')} is for networks that are trained from scratch: what a search "
                "that begins with a checkpoint has found stands beside the checkpoint itself"
            )
        begun = request.start is not None
        if given == NONE or copies(space.task, request.quality, begun=begun):
            return None
        if begun:
            return CHECKPOINT
        if given == PLAIN:
            return PLAIN if len(plain_rows(space)) else None
        own = site.architecture(given) if isinstance(given, str) else Architecture.from_json(given)
        totals(space.model, space.task, own)  # refuses stacks that do not fit the task
        # What no space may offer cannot be built; its lines are none that anybody wrote.
        source = TomlSource.parse(dump_space(alone(space, own)), "the baseline")
        space_from_source(replace(source, lines={}))
        return own.to_json()


def find_space(
    source: SpaceSource,
    site: Site,
    begun: StartingPoint | None = None,
    made: str | None = None,
) -> SearchSpace:
    """The space that a request names or brings along, with the choices that it leaves.

    Args:
        source: the request.
        site: where it is given.
        begun: the checkpoint that the search begins with; where no space is named, the one around
            it is meant.
        made: the name of the space that was made for the data of the request.

    Raises:
        NasError: when there is none, it cannot be read or not be restricted so, or its networks
            cannot inherit from the checkpoint.
    """
    if source.space_toml is not None:
        with blaming("space_toml"):
            space = parse_space(source.space_toml, "space_toml")
    elif made is not None:
        with blaming("data"):
            space = site.space(made)
    elif source.space is None and begun is not None:
        space = begun.space
    else:
        with blaming("space"):
            space = site.space(source.space or "")
    if begun is not None and (problem := begun.problem(space)) is not None:
        with blaming("space"):
            raise UsageError(
                f"networks of the space {space.name} cannot inherit from {begun.start.folder}: "
                f"{problem}; nas space from {shlex.quote(begun.start.folder)} writes one whose "
                "networks can"
            )
    if not source.restrict:
        return space
    with blaming("restrict"):
        left = space.restrict(checked_protected(space, source.restrict))
        if begun is not None and (problem := begun.problem(left)) is not None:
            raise UsageError(
                f"networks of the space {space.name} that are left cannot inherit from "
                f"{begun.start.folder}: {problem}; leave its own choices in"
            )
    return left


def _data(
    request: SearchRequest, space: SearchSpace, site: Site, reads: bool
) -> tuple[str, Path | None]:
    """Name and place of the data; where a checkpoint `reads` texts, a file may be enough."""
    if request.data == SYNTHETIC:
        return SYNTHETIC, None
    file = None
    with blaming("data"):
        if request.data is not None:
            file = site.data(request.data)
            if file.is_dir() or (reads and space.task in TEXT_TASKS):
                return file.name, file
    with blaming("dataset"):
        name = request.dataset or space.data.get("dataset")
        if not isinstance(name, str):
            raise UsageError(
                f"the space {space.name} names no data set: give one with {mark('dataset')}, a "
                "folder "
                f'made by nas data prepare with {mark("data")}, or write [data] dataset = "NAME" '
                "into its file"
            )
        return name, site.dataset(name, file)


@contextmanager
def blaming(field: str) -> Iterator[None]:
    """Let an error name the field of the request that is at fault."""
    try:
        yield
    except NasError as error:
        error.field = error.field or field
        raise
