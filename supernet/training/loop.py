"""The training loop of supernets and of single networks.

One update trains every network the sampler draws, one after the other, and steps once on the mean
of their gradients; a label counts the same in whichever batch of an update it stands. Everything
random follows from the seed and the epoch alone, so that a training that goes on from a checkpoint
ends in the same weights. An update that does not fit into the memory of a graphics card is done
again, its batches cut into parts whose gradients are added up; so are all that follow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from search_spaces.architecture import Architecture
from search_spaces.errors import DivergedError, TooLargeError, UsageError
from search_spaces.heap import steady_heap
from search_spaces.turns import give_way
from supernet.decoder import ElasticDecoder
from supernet.encoder import ElasticEncoder
from supernet.extraction import StandAlone, Supernet
from supernet.precision import repeatable, tf32
from supernet.seeds import mixed_seed
from supernet.slices import Slices
from supernet.tasks.base import Evaluation, Task
from supernet.tasks.evaluation import evaluate
from supernet.threads import cpu_threads
from supernet.training.averaging import WeightAverages
from supernet.training.card_memory import (
    Need,
    OutOfMemoryError,
    example_ways,
    generator_states,
    give_back,
    put_back,
    step_ways,
    too_large,
)
from supernet.training.checkpoint import CheckpointFolder, load
from supernet.training.gradients import add_gradients
from supernet.training.graphs import GraphedGradients
from supernet.training.lanes import Lanes
from supernet.training.parallel import Group, Share
from supernet.training.sampling import ArchitectureSampler, SingleNetwork
from supernet.training_settings import TrainingSettings, planned_updates

STABLE_CHECKS = 2


@dataclass(frozen=True, slots=True)
class EpochReport:
    """What one epoch did.

    Attributes:
        epoch: epochs finished, from 1.
        epochs: epochs planned.
        train_loss: mean training loss of all networks trained.
        probe_losses: validation losses of the probe networks, or () when not checked.
        tau: Kendall's tau of those with the check before; NaN at the first check.
        stopped: whether the ranking-stability stop ended the training here.
        parts: that each batch is cut into from now on, where less did not fit into the memory in
            this epoch; 0 where nothing has changed.
    """

    epoch: int
    epochs: int
    train_loss: float
    probe_losses: tuple[float, ...] = ()
    tau: float = math.nan
    stopped: bool = False
    parts: int = 0


class Trainer:
    """Trains one model; iterate over `run` to the end, then read `model` (averaged weights).

    Args:
        model: a supernet, or the model inside a `StandAlone`.
        sampler: which networks train in each update.
        probes: networks whose validation loss is followed; a single network is its own probe.
        task: what to learn, and from which data.
        settings: the numbers.
        seed: of batches, augmentation and dropout.
        device: where to train.
        folder: where to keep checkpoints, or None for none; all ranks of a group see it.
        group: who else trains this model; all are given the same arguments but this.
        teacher: a frozen network, which is moved to the device, whose soft labels all networks
            learn from in place of those of the largest; nothing is taken from it where the task
            has no soft labels.
        learnt: whether the first weights are worth keeping: they are checked before the first
            update, and are the best as long as nothing is better.
        need: of memory, which is told where a training does not fit.
        judge: what the best weights have least of; the loss if not given.

    Attributes:
        history: one line per epoch: epoch, train_loss, probe_loss (mean validation loss of the
            probes, None between checks), tau (None where there is none) and, where it is not by
            the loss that weights are judged, judged (likewise, of what they are judged by).
    """

    def __init__(
        self,
        model: Supernet,
        sampler: ArchitectureSampler,
        probes: Sequence[Architecture],
        task: Task[Any, Any],
        settings: TrainingSettings,
        *,
        seed: int,
        device: str = "cpu",
        folder: CheckpointFolder | None = None,
        group: Group | None = None,
        teacher: StandAlone | None = None,
        learnt: bool = False,
        need: Need | None = None,
        judge: Callable[[Evaluation], float] | None = None,
    ) -> None:
        taught = teacher is not None and settings.distillation > 0.0
        self._teacher = teacher.to(device) if teacher is not None and taught else None
        self._learnt = learnt
        self._need = need
        self._judge = judge
        self._raw = model.to(device)
        self._weights = list(model.parameters())
        for part in model.modules():
            if isinstance(part, ElasticEncoder | ElasticDecoder):
                part.checkpoints = settings.recompute
        self._sampler = sampler
        self._probes = probes
        self._task = task
        self._settings = settings
        self._seed = seed
        self._device = device
        self._folder = folder
        self._group = group or Group()
        self._optimizer = torch.optim.AdamW(
            _parameter_groups(model, settings.weight_decay),
            lr=settings.learning_rate,
            betas=(0.9, settings.adam_beta2),
            fused=True,
        )
        self._slices = Slices(model)
        self._lanes = Lanes(self._slices, settings, device)
        self._graphed: GraphedGradients | None = None
        # Recomputing asks for the random state, which nothing that is recorded may read.
        if device != "cpu" and isinstance(sampler, SingleNetwork) and not settings.recompute:
            network = sampler.draw()
            self._graphed = GraphedGradients(
                lambda share: self._add_gradients(share, network, self._slices), self._weights
            )
        self._averages = WeightAverages(self._raw, settings)
        self._total = planned_updates(settings, task.num_batches(settings))
        self._epoch = 0
        self._updates = 0
        self._within = 0  # updates of the epoch that is going on, and the sum of their losses
        self._loss_sum = 0.0
        self._parts = 1  # of each batch, and how many of them a report has told
        self._parts_told = 1
        self._stable = 0
        self._reached = False  # whether the last epoch's loss was below `stop_loss`
        self._losses: tuple[float, ...] = ()
        self._value = self._best = math.nan  # of the last check, and of the best
        self.history: list[dict[str, float | int | None]] = []

    @property
    def model(self) -> Supernet:
        """The weights to use: averaged where averaging is on."""
        return self._averages.model

    @property
    def best(self) -> float:
        """The least so far of what weights are judged by, in the mean of the probes."""
        return self._best

    def run(self) -> Iterator[EpochReport]:
        """Train from the last checkpoint, or from the start, yielding a report per epoch.

        Raises:
            DivergedError: at the first loss that is not finite.
            DamagedRunError: when the last checkpoint cannot be read.
            UsageError: when the ranks of a group see different checkpoints.
            TooLargeError: when the device's memory is too small for an update, however its batches
                are cut.
        """
        self._resume()
        if self._learnt and not self._updates:
            self._check()
        while not self._ended() and self._stable < STABLE_CHECKS:
            train_loss = self._train_epoch()
            self._epoch += 1
            self._reached = train_loss < self._settings.stop_loss
            self._averages.after_epoch()
            parts = self._new_parts()
            if not self._ended() and self._epoch % self._settings.check_every:
                self._remember(train_loss, None, math.nan)
                yield EpochReport(self._epoch, self._epochs(), train_loss, parts=parts)
                continue
            tau = self._check()
            self._remember(train_loss, float(np.mean(self._losses)), tau, self._value)
            stopped = self._stable >= STABLE_CHECKS
            self._save()
            yield EpochReport(
                self._epoch, self._epochs(), train_loss, self._losses, tau, stopped, parts
            )

    def value_at(self, share: float) -> float | None:
        """What weights are judged by, at the first check from a share of the training on.

        Of a training that was begun earlier as of one that is going on. One that ended before that
        share of what was planned is judged by its last check.

        Args:
            share: of the epochs planned, above 0 and at most 1.

        Returns:
            None as long as there was no such check.
        """
        if not self._updates:
            self._resume()
        if not self.history:
            return None
        least = share * self._epochs()
        if self._ended():  # which may have been before its time
            least = min(share * self._planned(), self._epoch)
        for line in self.history:
            value, epoch = line.get("judged", line["probe_loss"]), line["epoch"]
            if value is not None and epoch is not None and epoch >= least:
                return float(value)
        return None

    def final_weights(self) -> dict[str, Tensor]:
        """The weights a single network ends with: see `TrainingSettings.average_last`.

        Raises:
            DamagedRunError: when the best weights are needed and cannot be read from the folder.
        """
        mean = self._averages.mean_of_last()
        if mean is not None:
            return mean
        assert self._folder is not None, "without a folder the best weights are not kept"
        weights: dict[str, Tensor] = load(self._folder.best)["model"]
        return weights

    def _ended(self) -> bool:
        most = self._settings.max_updates
        ended = self._epoch >= self._settings.epochs or 0 < most <= self._updates
        return ended or self._reached

    def _epochs(self) -> int:
        """Epochs planned, as far as is known; the last one may be cut short."""
        return self._epoch if self._ended() else max(self._epoch + 1, self._planned())

    def _planned(self) -> int:
        """Epochs of a training that goes on to its end, by the length of those so far."""
        done = self._updates - self._within
        return min(self._settings.epochs, math.ceil(self._total * self._epoch / done))

    def _remember(
        self, train_loss: float, probe_loss: float | None, tau: float, value: float | None = None
    ) -> None:
        self.history.append(
            {
                "epoch": self._epoch,
                "train_loss": train_loss,
                "probe_loss": probe_loss,
                "tau": None if math.isnan(tau) else tau,
                **({} if self._judge is None else {"judged": value}),
            }
        )

    # -- one epoch ----------------------------------------------------------------------------

    def _train_epoch(self) -> float:
        self._raw.train()
        settings, device = self._settings, self._device
        with (
            torch.random.fork_rng(devices=[]),
            tf32(device, settings.bfloat16),
            repeatable(device, settings.deterministic),
            cpu_threads(settings.threads),
            steady_heap(),
        ):
            self._seed_dropout()
            stream = self._task.batches(
                self._settings, seed=self._seed, epoch=self._epoch, device=self._device
            )
            groups = _groups(stream, self._settings.accumulate)
            for batches in itertools.islice(groups, self._within, None):
                self._loss_sum += self._update(batches)
                self._within += 1
                if self._within == self._settings.epoch_updates or self._ended():
                    break
                self._save_within()
        mean = self._loss_sum / max(self._within, 1)
        self._within, self._loss_sum = 0, 0.0
        return mean

    def _save_within(self) -> None:
        every = self._settings.checkpoint_updates
        if every and self._within % every == 0:
            self._save()
            self._seed_dropout()

    def _seed_dropout(self) -> None:
        """Every epoch, rank and piece between checkpoints has random numbers of its own."""
        every = self._settings.checkpoint_updates
        piece = self._within // every if every else 0
        place = (self._group.rank, piece) if self._group.rank or piece else ()
        torch.manual_seed(mixed_seed(self._seed, self._epoch, 1, *place))

    def _update(self, batches: Sequence[Any]) -> float:
        give_way()
        rate = learning_rate(self._settings, self._updates, self._total)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        networks = self._sampler.draw()
        sums = self._fitting(batches, networks)
        try:
            self._step()
        except OutOfMemoryError as error:  # with smaller parts it would be the same
            ways = step_ways(self._settings)
            raise self._too_large("the step of the optimiser", ways) from error
        # Read behind all that was asked of the device: the only time that an update waits for it.
        losses = self._group.sum(sums)
        self._check_finite(losses, networks, f"the loss became {{}} in update {self._updates}")
        self._updates += 1
        self._averages.after_update()
        return float(np.mean(losses))

    def _fitting(self, batches: Sequence[Any], networks: Sequence[Architecture]) -> Tensor:
        """As `_backward`, in as many parts as the memory wants; the other ranks wait meanwhile."""
        states = generator_states(self._device)
        while True:
            self._optimizer.zero_grad(set_to_none=True)
            self._lanes.begin()
            try:
                return self._backward(batches, networks)
            except OutOfMemoryError:
                pass  # with its traceback ends what the update held
            if self._graphed is not None:
                self._graphed.clear()
            give_back()
            if self._parts >= max(len(batch) for batch in batches):
                ways = example_ways(self._task, self._settings)
                raise self._too_large("a single example of a batch", ways)
            self._parts *= 2
            put_back(states, self._device)

    def _step(self) -> None:
        self._group.add_up(self._weights)
        if self._settings.clip_norm > 0.0:
            nn.utils.clip_grad_norm_(self._weights, self._settings.clip_norm)
        self._optimizer.step()

    def _too_large(self, what: str, ways: Sequence[str]) -> TooLargeError:
        return too_large(what, ways, self._device, self._need)

    def _new_parts(self) -> int:
        """After an epoch: the parts of a batch on all ranks, where they have become more."""
        self._parts = self._group.largest(self._parts)
        before, self._parts_told = self._parts_told, self._parts
        return self._parts if self._parts > before else 0

    def _backward(self, batches: Sequence[Any], networks: Sequence[Architecture]) -> Tensor:
        """This rank's part of the gradients, and of each network's loss on all labels."""
        shares = self._group.shares(batches, self._parts * self._lanes.count)
        if self._graphed is None:
            return self._lanes.sum(
                shares, lambda share, slices: self._add_gradients(share, networks, slices)
            )
        losses = torch.zeros(len(networks), dtype=torch.float64, device=self._device)
        for share in shares:
            losses += self._graphed(share)
        return losses

    def _add_gradients(
        self, share: Share, networks: Sequence[Architecture], slices: Slices
    ) -> Tensor:
        return add_gradients(
            self._task,
            self._raw,
            share,
            networks,
            self._settings,
            device=self._device,
            slices=slices,
            teacher=self._teacher,
        )

    # -- checks and checkpoints ---------------------------------------------------------------

    def _check(self) -> float:
        before = self._losses
        model = self.model
        self._losses, self._value = self._probed()
        what = f"the validation loss became {{}} after epoch {self._epoch}"
        self._check_finite(self._losses, self._probes, what)
        tau = math.nan
        if len(before) > 1:
            from scipy.stats import kendalltau  # late: it takes long to load

            tau = float(kendalltau(before, self._losses).statistic)
        self._stable = self._stable + 1 if tau >= self._settings.stop_tau else 0
        if math.isnan(self._best) or self._value < self._best:
            self._best = self._value
            if self._folder is not None and self._group.rank == 0:
                self._folder.save_best({"model": model.state_dict(), "loss": self._value})
        return tau

    def _check_finite(
        self, losses: Sequence[float], networks: Sequence[Architecture], what: str
    ) -> None:
        for value, network in zip(losses, networks, strict=True):
            if not math.isfinite(value):
                raise DivergedError(
                    f"{what.format(value)} with network {network.id}; {self._against_it()}"
                )

    def _against_it(self) -> str:
        """What to do where a loss is no number."""
        if not self._updates:
            return (
                "no update had changed the weights, so look at the data, and at the checkpoint "
                "where the search begins with one"
            )
        clips = self._settings.clip_norm > 0.0
        return f"lower the learning rate{'' if clips else ' or switch gradient clipping on'}"

    def _probed(self) -> tuple[tuple[float, ...], float]:
        """The probes' losses, and the mean of what weights are judged by.

        Each probe is evaluated by one rank, so that nothing depends on the group.
        """
        count = len(self._probes)
        found = torch.zeros(2 * count, dtype=torch.float64)
        for number in range(self._group.rank, count, self._group.size):
            probe = self._probes[number]
            with cpu_threads(self._settings.threads):
                one = evaluate(self._task, self.model, probe, self._task.valid, device=self._device)
            found[number] = one.loss
            found[count + number] = one.loss if self._judge is None else self._judge(one)
        values = tuple(self._group.sum(found))
        return values[:count], float(np.mean(values[count:]))

    def _save(self) -> None:
        if self._folder is None or self._group.rank != 0:
            return
        state = {
            "epoch": self._epoch,
            "updates": self._updates,
            "within": self._within,
            "loss_sum": self._loss_sum,
            "parts": self._parts,
            "parts_told": self._parts_told,
            "averages": self._averages.state(),
            "stable": self._stable,
            "reached": self._reached,
            "losses": list(self._losses),
            "best": self._best,
            "history": self.history,
            "model": self._raw.state_dict(),
            "weights": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        self._folder.save_last(state)

    def _resume(self) -> None:
        state = None if self._folder is None else self._folder.load_last()
        if not self._group.agrees(-1 if state is None else state["updates"]):
            raise UsageError(
                "the processes that train together see different checkpoints: put the run folder "
                "on a disk that every machine of the cluster sees under the same path"
            )
        if state is None:
            return
        self._raw.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._averages.load(state["averages"])
        self._stable, self._best = state["stable"], state["best"]
        self._losses = tuple(state["losses"])
        self.history = list(state["history"])
        self._reached = state.get("reached", False)
        for _ in range(state["updates"] - self._updates):
            self._sampler.draw()
        self._epoch, self._updates = state["epoch"], state["updates"]
        self._within, self._loss_sum = state.get("within", 0), state.get("loss_sum", 0.0)
        self._parts, self._parts_told = state.get("parts", 1), state.get("parts_told", 1)


def _parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]


def _groups(stream: Iterable[Any], size: int) -> Iterator[tuple[Any, ...]]:
    """Neighbours in groups of `size`; the last may be smaller."""
    parts = iter(stream)
    while group := tuple(itertools.islice(parts, size)):
        yield group


def learning_rate(settings: TrainingSettings, update: int, total: int) -> float:
    """The rate of an update.

    Args:
        settings: the numbers.
        update: updates done before it.
        total: updates planned. Later passes may have a few batches more than the first, which the
            plan counts: the cosine stays at zero there, the square root goes on.

    Source: the inverse square root is fairseq's: that of Vaswani et al., "Attention Is All You
    Need" (2017), eq. 3, with the peak given as a number and the rate of the updates done so far. So
    the first update has the initial rate, and the peak is that of the update behind the warm-up.
    The cosine is at its peak with the last update of the warm-up.
    """
    peak, first = settings.learning_rate, settings.initial_rate
    warmup = max(1, round(settings.warmup_share * total))
    if settings.schedule == "inverse_sqrt":
        if update < warmup:
            return first + (peak - first) * update / warmup
        return peak * math.sqrt(warmup / update)
    if update < warmup:
        return first + (peak - first) * (update + 1) / warmup
    share = min(1.0, (update - warmup) / max(1, total - warmup))
    return peak * 0.5 * (1.0 + math.cos(math.pi * share))
