"""From what a client asks for to what a run needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nas.request.resolve import blaming, find_space, resolve
from nas.request.spec import SpaceSource
from search_spaces.errors import NasError, UsageError
from search_spaces.space import SearchSpace
from service.api.catalog import Catalog
from service.api.problems import ProblemError
from service.api.schemas import JobRequest
from supernet.data.manifest import read_manifest


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
    with refusing():
        return find_space(given, catalog)


def needs_limits(given: Mapping[str, Any]) -> bool:
    """Whether a request, as JSON, asks for what takes more libraries than others do."""
    asked = given.get("limits") or given.get("device_profile")
    return bool(asked) or given.get("quality", "loss") != "loss"


def read_search(given: JobRequest, catalog: Catalog) -> Search:
    """What has to be known of the search that a request asks for.

    Raises:
        ProblemError: naming the field at fault.
    """
    with refusing(*catalog.hidden):
        found = resolve(given, catalog)
        spec = found.spec
        if isinstance(found.space, SearchSpace) and spec.data is not None:
            with blaming("dataset" if given.data is None else "data"):
                _check_task(Path(spec.data), found.space)
        if spec.evaluator is None and (given.limits or given.quality != "loss"):
            # Imported late: it brings along what fits rankers, for which most have no use.
            from nas.stages.feasibility import check_costs, check_quality

            with blaming("limits"):
                check_costs(spec.space, spec.limits)
            with blaming("quality"):
                check_quality(spec)
    return Search(spec.model_dump_json(), found.space.name[:200], spec.dataset[:200], spec.preset)


def _check_task(data: Path, space: SearchSpace) -> None:
    """Refuse prepared data that are for another task than a space.

    Raises:
        UsageError: for such data, which only the run would refuse otherwise.
    """
    task = read_manifest(data).task if data.is_dir() else space.task
    if task != space.task:
        given, needed = (one.replace("_", " ") for one in (task, space.task))
        raise UsageError(
            f"the data set {data.name} is for {given}, but the networks of the space {space.name} "
            f"are for {needed}: choose a space for {given}, or data for {needed}"
        )


@contextmanager
def refusing(*hidden: str) -> Iterator[None]:
    """Tell what is wrong with a request as a problem of its field.

    Args:
        hidden: beginnings of paths that are left out of what is told.
    """
    try:
        yield
    except NasError as error:
        field = None if error.field is None else f"/{error.field}"
        message = error.marked
        for place in hidden:
            message = message.replace(place, "")
        raise ProblemError(422, message, field) from error
