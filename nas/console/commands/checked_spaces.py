"""Spaces that a command is going to work with, their free tables checked as well."""

from __future__ import annotations

from nas.objectives import base_workload
from nas.request.presets import check_presets
from nas.request.workloads import check_workload
from search_spaces.errors import UsageError
from search_spaces.loading import space_source
from search_spaces.space import SearchSpace
from search_spaces.space_form import space_from_source


def checked_space(name_or_path: str) -> SearchSpace:
    """Load a space whose ``[presets]`` and ``[workload]`` can be used.

    Args:
        name_or_path: as `search_spaces.loading.load_space` takes it.

    Raises:
        UnknownNameError: for a name that is not shipped, with the nearest ones.
        SpaceFileError: naming file, line and key, what was found and what is allowed.
    """
    source = space_source(name_or_path)
    if "genes" in source.data:
        raise source.error(
            ("genes",),
            "a space of genes holds networks that only an evaluator knows: search it with "
            "nas search --space FILE --evaluator NAME",
        )
    space = space_from_source(source)
    check_presets(source, space)
    try:
        if space.workload:
            check_workload(space, base_workload(space))
    except UsageError as error:
        raise source.error(("workload",), str(error)) from None
    return space
