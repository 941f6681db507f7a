"""From what a client asks for to what a run needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nas.request.picks import read_pick
from nas.request.presets import budget_for, setting_names
from nas.request.spec import SearchSpec, build_spec
from search_spaces.errors import NasError, UsageError
from search_spaces.loading import dump_space, parse_space
from search_spaces.space import SearchSpace
from search_spaces.toml_source import unknown_name
from service.catalog import Catalog
from service.problems import ProblemError
from service.schemas import JobRequest, SpaceSource


@dataclass(frozen=True)
class Search:
    """What there has to be known of a search to keep it.

    Attributes:
        spec: of its run, as JSON.
        space: name of the space.
        dataset: name of the data set.
        preset: how much to do.
    """

    spec: str
    space: str
    dataset: str
    preset: str


def read_space(given: SpaceSource, catalog: Catalog) -> SearchSpace:
    """The space that a request names or brings along.

    Raises:
        ProblemError: naming the field at fault.
    """
    if given.space is not None:
        with blaming("/space"):
            space = catalog.space(given.space)
    else:
        assert given.space_toml is not None  # the schema asks for one of the two
        with blaming("/space_toml"):
            space = parse_space(given.space_toml, "space_toml")
    with blaming("/restrict"):
        return space.restrict(given.restrict) if given.restrict else space


def read_search(given: JobRequest, catalog: Catalog) -> Search:
    """What has to be known of the search that a request asks for.

    Raises:
        ProblemError: naming the field at fault.
    """
    spec, space = read_request(given, catalog)
    return Search(spec.model_dump_json(), space.name[:200], spec.dataset[:200], spec.preset)


def needs_limits(given: Mapping[str, Any]) -> bool:
    """Whether a request, as JSON, asks for what not every space can do."""
    return bool(given.get("limits")) or given.get("quality", "loss") != "loss"


def read_request(given: JobRequest, catalog: Catalog) -> tuple[SearchSpec, SearchSpace]:
    """The spec of a search, and its space, which takes a while to read out of the spec again.

    Raises:
        ProblemError: naming the field at fault.
    """
    space = read_space(given, catalog)
    name = given.dataset or space.data.get("dataset")
    with blaming("/dataset"):
        if not isinstance(name, str):
            raise UsageError(f"the space {space.name} names no data set; name one")
        dataset = catalog.dataset(name)
    known = setting_names()
    for setting in given.settings:
        if setting not in known:
            raise ProblemError(422, unknown_name(setting, known), f"/settings/{setting}")
    with blaming("/settings"):
        budget = budget_for(space, given.preset, _texts(given))
    with blaming("/objectives"):
        spec = build_spec(
            space_toml=dump_space(space),
            dataset=dataset.name,
            data=None if dataset.path is None else str(dataset.path),
            device=given.device,
            objectives=tuple(given.objectives),
            quality=given.quality,
            preset=given.preset,
            budget=budget,
            seed=given.seed,
            pick=given.pick,
        )
    with blaming("/limits"):
        spec = build_spec(**{**spec.model_dump(), "limits": given.limits})
    with blaming("/pick"):
        read_pick(given.pick).check_measured(spec.needs_latency, spec.quality)
    if given.limits or given.quality != "loss":
        _check_reach(spec, space)
    return spec, space


def _check_reach(spec: SearchSpec, space: SearchSpace) -> None:
    """Refuse what no network of the space can do."""
    # Imported late: it brings along what fits rankers, for which most requests have no use.
    from nas.stages.feasibility import check_costs, check_quality

    with blaming("/limits"):
        check_costs(space, spec.limits)
    with blaming("/quality"):
        check_quality(spec)


def _texts(given: JobRequest) -> dict[str, str]:
    """Settings as the command line would give them; null leaves the preset's."""
    values = {name: value for name, value in given.settings.items() if value is not None}
    return {n: str(v).lower() if isinstance(v, bool) else str(v) for n, v in values.items()}


@contextmanager
def blaming(field: str) -> Iterator[None]:
    """Let an error name the field at fault."""
    try:
        yield
    except NasError as error:
        raise ProblemError(422, str(error), field) from error
