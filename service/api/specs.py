"""From what a client asks for to what a run needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nas.request.resolve import blaming, find_space, resolve
from nas.request.spec import SearchSpec, SpaceSource
from search_spaces.errors import NasError
from search_spaces.space import SearchSpace
from service.api.catalog import Catalog
from service.api.problems import ProblemError
from service.api.schemas import JobRequest
from supernet.data.manifest import read_manifest
from supernet.data.prepared import check_manifest_fits
from supernet.data.sources import check_built_in_fits


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
        if isinstance(found.space, SearchSpace):
            with blaming("dataset" if given.data is None else "data"):
                _check_data(spec, found.space)
        if spec.evaluator is None and (given.limits or given.quality != "loss"):
            # Imported late: it brings along what fits rankers, for which most have no use.
            from nas.stages.feasibility import check_costs, check_quality

            with blaming("limits"):
                check_costs(spec.space, spec.limits)
            with blaming("quality"):
                check_quality(spec)
    return Search(spec.model_dump_json(), found.space.name[:200], spec.dataset[:200], spec.preset)


def _check_data(spec: SearchSpec, space: SearchSpace) -> None:
    """Refuse data that networks of a space cannot read, which the run would refuse otherwise.

    Raises:
        DataError: for such data; what lies in the file of a data set only the run looks at.
    """
    if spec.data is None:
        check_built_in_fits(spec.dataset, space)
        if spec.start is not None and space.task == "embedding":
            # Imported late: it brings along torch.
            from supernet.tasks.embedding import EmbeddingTask

            EmbeddingTask.open(space, spec.dataset, None, spec.seed)  # which needs a folder
    elif (folder := Path(spec.data)).is_dir():
        if spec.start is not None:
            # Imported late: it brings along torch.
            from nas.run.checkpoint import check_tokenizer

            check_tokenizer(folder, spec.start, space.task)
        check_manifest_fits(folder.name, read_manifest(folder), space)


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
