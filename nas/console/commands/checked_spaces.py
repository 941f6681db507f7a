"""Spaces that a command is going to work with, their other tables checked as well."""

from __future__ import annotations

from nas.request.presets import check_presets
from nas.request.workloads import own_workload
from search_spaces.data_keys import DATASET, RECALL
from search_spaces.errors import DataError, UsageError
from search_spaces.genes import GeneSpace, genes_from_source
from search_spaces.loading import space_source
from search_spaces.space import SearchSpace
from search_spaces.space_form import space_from_source
from search_spaces.toml.source import TomlSource
from supernet.data.sources import SOURCES, Scale, check_built_in_fits

BUILT_IN = sorted({*SOURCES, RECALL})
"""Names of the data sets that need no folder of `nas data prepare`."""


def checked_space(name_or_path: str) -> SearchSpace:
    """Load a space whose ``[presets]``, ``[workload]`` and ``[data]`` can be used.

    Of ``[data]`` that is what holds for any data, as a search may name others.

    Args:
        name_or_path: as `search_spaces.loading.load_space` takes it.

    Raises:
        UnknownNameError: for a name that is not shipped, with the nearest ones.
        SpaceFileError: naming file, line and key, what was found and what is allowed.
    """
    source = space_source(name_or_path)
    if _has_genes(source):
        raise source.error(
            ("genes",),
            "a space of genes holds networks that only an evaluator knows: search it with "
            "nas search --space FILE --evaluator NAME",
        )
    return _checked(source)


def checked_any(name_or_path: str) -> SearchSpace | GeneSpace:
    """The same, or the space of genes that a file holds.

    Arguments and errors as for `checked_space`.
    """
    source = space_source(name_or_path)
    return genes_from_source(source) if _has_genes(source) else _checked(source)


def checked_with_data(name_or_path: str) -> SearchSpace | GeneSpace:
    """The same as `checked_any`, and the networks can read the space's own data set.

    One that is not built in can be anything: nothing is said of it.

    Arguments and errors as for `checked_space`.
    """
    source = space_source(name_or_path)
    if _has_genes(source):
        return genes_from_source(source)
    space = _checked(source)
    dataset = space.data.get(DATASET)
    if dataset not in BUILT_IN:
        return space
    try:
        check_built_in_fits(dataset, space)
    except DataError as error:
        raise source.error(("data", DATASET), error.marked) from None
    return space


def _has_genes(source: TomlSource) -> bool:
    return "genes" in source.data


def _checked(source: TomlSource) -> SearchSpace:
    space = space_from_source(source)
    check_presets(source, space)
    try:
        if space.workload:
            own_workload(space)
    except UsageError as error:
        raise source.error(("workload",), str(error)) from None
    try:
        Scale.read(space.data, space.model.input)
    except DataError as error:
        raise source.error(
            ("data", "mean" if "mean" in space.data else "std"), str(error)
        ) from None
    return space
