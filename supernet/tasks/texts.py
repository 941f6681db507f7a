"""What both tasks on texts share: the folder of their data, and perplexity."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Collection
from pathlib import Path

from search_spaces.errors import DataError
from search_spaces.loading import space_names
from search_spaces.space import SearchSpace

EVALUATION_TOKENS = 4096  # of a batch, unless a row alone is longer
SYNTHETIC_SEED = 0  # as other data sets', its splits are the same in every run
MOST_NATS = 700.0  # a larger exponent has no finite power


def perplexity(nats: float) -> float:
    """Finite, so that it can be written down: a network that has diverged has a huge one."""
    return math.exp(min(MOST_NATS, nats))


def data_folder(
    space: SearchSpace,
    dataset: str,
    path: str | None,
    options: Callable[[SearchSpace], str],
    generated: Collection[str],
) -> Path | None:
    """The prepared folder; None for data that are generated.

    Args:
        space: of the networks.
        dataset: name of the data.
        path: of the folder.
        options: of ``nas data prepare`` for a space: files, and the numbers that it needs.
        generated: names of the task's generated data.

    Raises:
        DataError: when no folder is named: what to type to get one.
    """
    if path is not None:
        return Path(path).expanduser()
    if dataset in generated:
        return None
    folder = f"data/{dataset}"
    name = shlex.quote(space.name if space.name in space_names() else f"./{space.name}.toml")
    raise DataError(
        f"the space {space.name} needs data, which are prepared once and then searched with:\n"
        f"  nas data prepare --task {space.task} {options(space)} --out {folder}\n"
        f"  nas search --space {name} --data {folder}\n"
        f"To try the space at once, on a generated corpus:\n"
        f"  nas search --space {name} --data synthetic --preset smoke"
    )
