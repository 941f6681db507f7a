"""Tells when a network learnt less on its own than it showed in the search.

Most searches compare networks by inherited weights. They hide a network that is hard to train on
its own: its weights were learnt in wider and shallower networks. Such a winner may stand at chance
after a retraining that others do well with. Where networks were trained alone for a short while
before they were observed, the longer schedule of the retraining may suit one less.
"""

from __future__ import annotations

import shlex

from nas.objectives import QUALITY
from nas.search.front import FrontEntry

# Losses of the search may be of a part of the validation split: that moves them a few percent.
TOLERANCE = 1.1


def loss_in_search(entry: FrontEntry) -> float | None:
    """The validation loss in nats that the search measured; None where it measured none."""
    return entry.measured.get("valid_loss", entry.measured.get(QUALITY))


def shortfall(entry: FrontEntry, loss: float | None) -> str | None:
    """Words for a network that learnt less on its own than it showed in the search, or None.

    Args:
        entry: the network.
        loss: its validation loss after training from scratch; None is not judged.
    """
    shown = loss_in_search(entry)
    if loss is None or shown is None or loss <= TOLERANCE * shown:
        return None
    return (
        f"network {entry.id} learnt less on its own than it showed in the search: its validation "
        f"loss is {loss:.3f} and was {shown:.3f}; its training does not suit it"
    )


def shortfall_and_advice(entry: FrontEntry, loss: float | None, run: str) -> str | None:
    """The same, with the command that tries other settings on the run of that name."""
    words = shortfall(entry, loss)
    if words is None:
        return None
    name = shlex.quote(run)
    return f"{words}, try others: nas retrain {name} --pick {entry.id} --tune 8 --executor ray"
