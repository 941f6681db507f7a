"""Who computes on a device of this machine, and who times there alone; see `search_spaces.turns`.

Importing this module does not import torch.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from search_spaces.turns import TURNS, give_way, waiting

__all__ = ["computing", "give_way", "timing", "waiting"]


def computing(device: str) -> AbstractContextManager[None]:
    """Compute on a device while nobody times there; call `give_way` now and then inside.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``; a card that is not there counts as the processor.
    """
    card = _card(device)
    if card is None:
        return TURNS.computing("cpu")
    import torch

    return TURNS.computing(card, lambda: torch.cuda.synchronize(device))


def timing(device: str) -> AbstractContextManager[None]:
    """Be alone on a device, and on the processor, which starts the work of a graphics card.

    Held for one session of the timer, so that others get their turn between two. What this process
    itself computes on the device rests meanwhile.

    Args:
        device: as in `computing`.

    Raises:
        NasError: when other processes have timed for half an hour.
    """
    card = _card(device)
    return TURNS.timing(["cpu"] if card is None else ["cpu", card])


def _card(device: str) -> str | None:
    """The name of a graphics card: its own, which is the same in every process that sees it."""
    if device == "cpu":
        return None
    import torch

    number = int(device.partition(":")[2] or 0)
    if not torch.cuda.is_available() or number >= torch.cuda.device_count():
        return None
    return f"cuda-{torch.cuda.get_device_properties(number).uuid}"
