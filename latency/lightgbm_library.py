"""LightGBM, where it loads: its wheel needs a system library that not every machine has."""

from __future__ import annotations

from typing import Any

from search_spaces.errors import NasError


def load_lightgbm() -> Any:
    """The library, imported when it is first needed, for that takes long.

    Raises:
        NasError: where it does not load, with what to do.
    """
    try:
        import lightgbm
    except (ImportError, OSError) as error:
        raise NasError(
            f"boosted trees need LightGBM, which does not load on this machine ({error}): install "
            "its system library (libgomp1 of Debian and Ubuntu, libgomp of Fedora), or go on with "
            "the run where it was begun"
        ) from error
    return lightgbm


def lightgbm_loads() -> bool:
    """Whether it does: what chooses among several regressors or rankers does without trees."""
    try:
        load_lightgbm()
    except NasError:
        return False
    return True
