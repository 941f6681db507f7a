"""What both tasks on texts share: the folder of their data, the generated corpus, perplexity."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from search_spaces.data_keys import DATASET
from search_spaces.errors import DataError
from search_spaces.loading import space_names
from search_spaces.settings import TokenInput
from search_spaces.space import SearchSpace
from search_spaces.wording import mark
from supernet.data.prepared import PreparedData, check_fits

EVALUATION_TOKENS = 4096  # of a batch, unless a row alone is longer
SYNTHETIC_SEED = 0  # as other data sets', its splits are the same in every run
MOST_NATS = 700.0  # a larger exponent has no finite power


def perplexity(nats: float) -> float:
    """Finite, so that it can be written down: a network that has diverged has a huge one."""
    return math.exp(min(MOST_NATS, nats))


def check_generated(data: PreparedData[Any], space: SearchSpace, built_in: str = "") -> None:
    """See that networks of a space can read the generated corpus, which nothing makes smaller.

    Args:
        data: the corpus.
        space: of the networks.
        built_in: name of other generated data of the task, which the space's own may be.

    Raises:
        DataError: when they cannot: what they are searched with.
    """
    try:
        check_fits(data, space.model)
    except DataError:
        own = built_in and space.data.get(DATASET) == built_in
        how = (
            f"leave {mark('data')} out for its own data, {built_in}"
            if own
            else f"give a folder made by nas data prepare with {mark('data')}"
        )
        shape, tokens = space.model.input, data.source_tokenizer
        assert isinstance(shape, TokenInput) and tokens is not None
        raise DataError(
            f"the space {space.name} does not take {data.name}: the vocabulary of that corpus has "
            f"{tokens.vocab_size} tokens and its longest row {data.longest}, and the networks have "
            f"{shape.vocab_size} and read {space.model.max_length}; {how}"
        ) from None


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
