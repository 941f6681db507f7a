"""From which distance on a token that was seen before counts as recalled."""

from __future__ import annotations

from collections.abc import Iterator

from search_spaces.attention import window_of
from search_spaces.errors import UsageError
from search_spaces.space import SearchSpace

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
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise UsageError(
            f"{SETTING} in the [data] table of the space {space.name} is a whole number of tokens, "
            f"at least 0; found {given!r}"
        )
    return given


def _windows(space: SearchSpace) -> Iterator[int]:
    """Of all kinds with a window that layers offer."""
    for slot in space.slots:
        if slot.gene.endswith("attention"):
            windows = (window_of(space.model, str(choice)) for choice in slot.choices)
            yield from (window for window in windows if window)
