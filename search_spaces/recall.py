"""From which distance on a token that was seen before counts as recalled."""

from __future__ import annotations

from collections.abc import Iterator

from search_spaces.attention import window_of
from search_spaces.errors import UsageError
from search_spaces.space import SearchSpace
from search_spaces.toml.source import shown

SETTING = "recall_window"


def recall_window(space: SearchSpace) -> int | None:
    """The window, in tokens, beyond which repeated bigrams of a space's texts count as recall.

    Returns:
        ``[data] recall_window`` of the space, or else the largest window that a layer of its
        networks may have; None where there is neither: recall is not measured there.

    Raises:
        UsageError: when that is no whole number of at least 0.
    """
    given = space.data.get(SETTING)
    if given is None:
        return max(_windows(space), default=None)
    if (problem := window_problem(given)) is not None:
        # Of a space that an earlier version kept: others were refused when they were read.
        raise UsageError(f"{SETTING} in the [data] table of the space {space.name}: {problem}")
    assert isinstance(given, int)
    return given


def window_problem(given: object) -> str | None:
    """What is wrong with such a setting; None where nothing is."""
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return None
    return f"found {shown(given)}, allowed is a whole number of tokens, at least 0"


def _windows(space: SearchSpace) -> Iterator[int]:
    """Of all kinds with a window that layers offer."""
    for slot in space.slots:
        if slot.gene.endswith("attention"):
            windows = (window_of(space.model, str(choice)) for choice in slot.choices)
            yield from (window for window in windows if window)
