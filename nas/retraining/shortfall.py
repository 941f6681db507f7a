"""Tells when a network learnt less from scratch than it had inherited from the supernet.

A search compares networks by inherited weights. They hide a network that is hard to train on its
own: its weights were learnt in wider and shallower networks. Such a winner may stand at chance
after a retraining that others do well with.
"""

from __future__ import annotations

import shlex

from nas.objectives import QUALITY
from nas.search.front import FrontEntry

# Inherited losses may be of a part of the validation split: that moves them by a few percent.
TOLERANCE = 1.1


def inherited_loss(entry: FrontEntry) -> float | None:
    """The validation loss with inherited weights in nats; None where no network was measured."""
    return entry.measured.get("valid_loss", entry.measured.get(QUALITY))


def shortfall(entry: FrontEntry, loss: float | None) -> str | None:
    """Words for a network that learnt less from scratch than it had inherited, or None.

    Args:
        entry: the network.
        loss: its validation loss after training from scratch; None is not judged.
    """
    inherited = inherited_loss(entry)
    if loss is None or inherited is None or loss <= TOLERANCE * inherited:
        return None
    return (
        f"network {entry.id} learnt less from scratch than it had inherited: its validation loss "
        f"is {loss:.3f} and was {inherited:.3f}; its training does not suit it"
    )


def shortfall_and_advice(entry: FrontEntry, loss: float | None, run: str) -> str | None:
    """The same, with the command that tries other settings on the run of that name."""
    words = shortfall(entry, loss)
    if words is None:
        return None
    name = shlex.quote(run)
    return f"{words}, try others: nas retrain {name} --pick {entry.id} --tune 8 --executor ray"
