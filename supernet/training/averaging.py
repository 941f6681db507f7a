"""Averaged weights: a running average over updates, and the mean of the last epochs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from supernet.extraction import Supernet
from supernet.training_settings import TrainingSettings

Weights = dict[str, Tensor]


class WeightAverages:
    """What `TrainingSettings.ema_decay` and `average_last` ask for of a model in training.

    Args:
        model: the weights that are trained, on their device.
        settings: the numbers.
    """

    def __init__(self, model: Supernet, settings: TrainingSettings) -> None:
        self._raw = model
        self._running: AveragedModel | None = None
        if settings.ema_decay > 0.0:
            average = get_ema_multi_avg_fn(settings.ema_decay)
            self._running = AveragedModel(model, multi_avg_fn=average)
        self._count = settings.average_last
        self._last: list[Weights] = []

    @property
    def model(self) -> Supernet:
        """The weights to use now: the running average where there is one."""
        return self._raw if self._running is None else self._running.module  # type: ignore[return-value]

    def after_update(self) -> None:
        """Follow an update of the weights."""
        if self._running is not None:
            self._running.update_parameters(self._raw)

    def after_epoch(self) -> None:
        """Keep the weights as they are after an epoch, as long as they are among the last."""
        if self._count:
            state = self.model.state_dict()
            weights = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}
            self._last = [*self._last, weights][-self._count :]

    def mean_of_last(self) -> Weights | None:
        """The mean over the last epochs; None where it was not asked for."""
        if not self._last:
            return None
        names = self._last[0]
        return {name: torch.stack([one[name] for one in self._last]).mean(dim=0) for name in names}

    def state(self) -> dict[str, Any]:
        """What `load` reads, to go on with."""
        running = None if self._running is None else self._running.state_dict()
        return {"running": running, "last": self._last}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        if self._running is not None:
            self._running.load_state_dict(state["running"])
        self._last = list(state["last"])
