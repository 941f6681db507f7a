"""Blockwise local distillation: other kinds of attention learn what a checkpoint's layers do.

The checkpoint runs once for a batch. Every kind that a layer of the supernet offers beside the
layer's own is given what that layer's attention was given, and learns to say what it said; layers
and kinds know nothing of each other, so that all of them learn in one pass. In the end what was
learnt is kept where it is nearer than the beginning, which a wide window hardly is: AdamW's steps
do not shrink with the error. Then outputs that fewer heads have for themselves are fitted to the
same, see `supernet.inheritance.refit`.

Source: Bercovich et al., Puzzle (2024), section 3, and Zhang et al., LoLCATs (2024), section 3.1;
the error is the squared distance over the square of the layer's output, so that layers count alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from search_spaces.architecture import AttentionKind, base_kind
from search_spaces.space import SearchSpace
from search_spaces.turns import give_way
from supernet.blocks import Projections
from supernet.building import build_supernet
from supernet.inheritance.parts import (
    LayerParts,
    Weights,
    attention_of,
    final_states,
    layer_parts,
    real_positions,
    stack_name,
)
from supernet.inheritance.refit import Moments
from supernet.pretrained.checkpoint import Checkpoint
from supernet.pretrained.names import layer_kinds
from supernet.rotary import rotation_of
from supernet.training.checkpoint import CheckpointFolder

CHECKPOINT_UPDATES = 25
JUDGED_BATCHES = 8
"""The first ones, by which is seen what to keep, and to which outputs of fewer heads are fitted."""


@dataclass(frozen=True, slots=True)
class LocalReport:
    """How far the distillation is.

    Attributes:
        update: done so far.
        updates: planned.
        error: mean over layers and kinds, in the last update.
    """

    update: int
    updates: int
    error: float


@dataclass(frozen=True)
class Seen:
    """What a layer's attention was given and what it said, each ``(B, N, D)``."""

    given: Tensor
    said: Tensor


class LocalDistillation:
    """Teaches the kinds of attention of a supernet; iterate over `run`, then read `weights`.

    Args:
        space: around the checkpoint.
        weights: the supernet's, of `supernet.inheritance.inherit.inherit`.
        checkpoint: the teacher.
        batches: number of an update → the inputs of it, which the number alone decides.
        updates: how many.
        learning_rate: at the start; it falls to 0 along a cosine.
        device: where to compute.
        folder: where to keep checkpoints, or None for none.
        layers: numbers of those that learn; None for all. A layer learns the same alone.
    """

    def __init__(
        self,
        space: SearchSpace,
        weights: Weights,
        checkpoint: Checkpoint,
        batches: Callable[[int], Tensor],
        *,
        updates: int,
        learning_rate: float,
        device: str = "cpu",
        folder: CheckpointFolder | None = None,
        layers: Sequence[int] | None = None,
    ) -> None:
        with torch.random.fork_rng(devices=[]):
            self._model = build_supernet(space)
        self._model.load_state_dict(weights)
        self._model.requires_grad_(False).to(device).eval()
        self._teacher = checkpoint.network().requires_grad_(False).to(device)
        self._parts = layer_parts(self._teacher)
        stack: Any = getattr(self._model, stack_name(checkpoint.architecture))
        self._attentions = [attention_of(block) for block in stack.blocks]
        own = layer_kinds(checkpoint.architecture)
        self._learners = [
            (number, kind)
            for number, attention in enumerate(self._attentions)
            if layers is None or number in layers
            for kind in attention.kernels
            if kind != own[number] and base_kind(kind) != "omni"
        ]
        self._batches, self._updates, self._rate = batches, updates, learning_rate
        self._folder, self._done = folder, 0
        self._errors: dict[str, float] = {}
        self._free = [
            (number, kind)
            for number, kind in self._learners
            if self._projections(number, kind) is not self._projections(number, own[number])
        ]
        self._parameters = self._learnt()
        self._first = [one.detach().clone() for one in self._parameters]
        self._optimizer: torch.optim.Optimizer | None = None
        if self._parameters:
            for parameter in self._parameters:
                parameter.requires_grad_(True)
            self._optimizer = torch.optim.AdamW(self._parameters, learning_rate, weight_decay=0.0)

    def run(self) -> Iterator[LocalReport]:
        """Distil from the last checkpoint, or from the start, with a report after each update.

        Raises:
            DamagedRunError: when the last checkpoint cannot be read.
        """
        if self._optimizer is None:  # there is nothing to learn, but how near the kinds are
            found = self._judged() if self._learners else {}
            self._errors = {f"{number}.{kind}": error for (number, kind), error in found.items()}
            return
        self._resume(self._optimizer)
        while self._done < self._updates:
            give_way()
            self._update(self._optimizer)
            if self._done % CHECKPOINT_UPDATES == 0:
                self._save(self._optimizer)
            mean = sum(self._errors.values()) / len(self._errors)
            yield LocalReport(self._done, self._updates, mean)
        self._keep_the_nearer()
        self._fit_outputs()

    def errors(self) -> dict[str, float]:
        """``LAYER.KIND`` → its error in the last update, layers counted from 0.

        After `run` it is the mean over the first batches, with the weights that are kept.
        """
        return dict(self._errors)

    def weights(self) -> Weights:
        """The supernet's weights, on the CPU."""
        return {name: tensor.detach().cpu() for name, tensor in self._model.state_dict().items()}

    def _projections(self, number: int, kind: AttentionKind) -> Projections:
        return self._attentions[number].projections_for(kind)

    def _learnt(self) -> list[nn.Parameter]:
        """Parameters that only other kinds have; none of the checkpoint's own."""
        modules: list[nn.Module] = [self._attentions[n].kernels[kind] for n, kind in self._learners]
        modules += [self._projections(number, kind) for number, kind in self._free]
        found = dict.fromkeys(one for module in modules for one in module.parameters())
        fitted = [self._projections(number, kind).outputs for number, kind in self._free]
        for one in (parameter for outputs in fitted for parameter in outputs.parameters()):
            found.pop(one, None)
        return list(found)

    def _seen(self, inputs: Tensor) -> tuple[dict[int, Seen], Tensor | None]:
        """What the teacher's layers are given and say, and which positions count."""
        with _watched(self._parts) as seen, torch.no_grad():
            final_states(self._teacher, inputs, self._teacher.architecture)
        return seen, real_positions(self._teacher, inputs)

    def _update(self, optimizer: torch.optim.Optimizer) -> None:
        share = self._done / self._updates
        for group in optimizer.param_groups:
            group["lr"] = self._rate * 0.5 * (1.0 + math.cos(math.pi * share))
        seen, mask_BN = self._seen(self._batches(self._done))
        optimizer.zero_grad(set_to_none=True)
        for number, kind in self._learners:
            error = self._error(number, kind, seen[number], mask_BN)
            if error.requires_grad:  # a window that shares its projections has nothing to learn
                error.backward()
            self._errors[f"{number}.{kind}"] = error.item()
        optimizer.step()
        self._done += 1

    @torch.no_grad()
    def _keep_the_nearer(self) -> None:
        """Take back what was learnt where it is no nearer to what the layer says.

        Kinds that share projections have learnt together, and are judged together.
        """
        learnt = [one.detach().clone() for one in self._parameters]
        after = self._judged()
        self._restore(self._first, self._parameters)
        before = self._judged()
        values = dict(zip(self._parameters, learnt, strict=True))
        groups: dict[nn.Module, list[tuple[int, AttentionKind]]] = {}
        for one in self._learners:
            number, kind = one
            shared = self._projections(*one) if one in self._free else None
            groups.setdefault(shared or self._attentions[number].kernels[kind], []).append(one)
        for shared_part, kinds in groups.items():
            kept = before
            if sum(after[one] for one in kinds) < sum(before[one] for one in kinds):
                kept = after
                parts = [shared_part, *(self._attentions[n].kernels[kind] for n, kind in kinds)]
                own = [p for part in parts for p in part.parameters() if p in values]
                self._restore([values[one] for one in own], own)
            self._errors |= {f"{number}.{kind}": kept[number, kind] for number, kind in kinds}

    def _restore(self, values: Sequence[Tensor], parameters: Sequence[nn.Parameter]) -> None:
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)

    @torch.no_grad()
    def _judged(self) -> dict[tuple[int, AttentionKind], float]:
        """The mean error of each kind in each layer over the first batches."""
        sums = dict.fromkeys(self._learners, 0.0)
        for update in range(JUDGED_BATCHES):
            give_way()
            seen, mask_BN = self._seen(self._batches(update))
            for number, kind in self._learners:
                error = self._error(number, kind, seen[number], mask_BN)
                sums[number, kind] += error.item() / JUDGED_BATCHES
        return sums

    @torch.no_grad()
    def _fit_outputs(self) -> None:
        """Give fewer heads the outputs that say best what the layer says.

        Heads that share keys would read others than now: their outputs are the leading part.
        """
        owners = [self._projections(number, kind) for number, kind in self._free]
        moments = {own: Moments.of(own.output) for own in owners if len(own.outputs)}
        if not moments:
            return
        for update in range(JUDGED_BATCHES):
            give_way()
            seen, mask_BN = self._seen(self._batches(update))
            for (number, kind), own in zip(self._free, owners, strict=True):
                if own in moments and self._parts[number].groups is None:
                    with _given(own.output) as merged:
                        self._said(number, kind, seen[number].given, mask_BN)
                    moments[own].add(merged[0], seen[number].said, mask_BN)
        for (number, _), own in zip(self._free, owners, strict=True):
            whole = own.output
            for smaller in own.outputs.values():
                assert isinstance(smaller, nn.Linear)
                kept = smaller.in_features
                found: tuple[Tensor, Tensor | None] = whole.weight[:, :kept], whole.bias
                if self._parts[number].groups is None:
                    found = moments[own].refit(whole.weight, whole.bias, kept)
                smaller.weight.copy_(found[0])
                if found[1] is not None:
                    smaller.bias.copy_(found[1])

    def _error(
        self, number: int, kind: AttentionKind, seen: Seen, mask_BN: Tensor | None
    ) -> Tensor:
        """The normalised squared error of one kind in one layer."""
        said = self._said(number, kind, seen.given, mask_BN)
        if mask_BN is None:
            return (said - seen.said).square().sum() / seen.said.square().sum()
        right = seen.said[mask_BN]
        return (said[mask_BN] - right).square().sum() / right.square().sum()

    def _said(
        self, number: int, kind: AttentionKind, x_BND: Tensor, mask_BN: Tensor | None
    ) -> Tensor:
        attention, part = self._attentions[number], self._parts[number]
        places = torch.arange(x_BND.shape[1], device=x_BND.device)
        rotation = rotation_of(attention.settings, places)
        heads, groups = part.num_heads, part.groups
        if attention.place == "encoder":
            return attention(x_BND, kind, heads, mask_BN, 1, groups, rotation)  # type: ignore[no-any-return]
        return attention.causal(x_BND, kind, heads, None, 1, mask_BN, groups, rotation)[0]

    def _save(self, optimizer: torch.optim.Optimizer) -> None:
        if self._folder is not None:
            self._folder.save_last(
                {
                    "update": self._done,
                    "errors": self._errors,
                    "parameters": [one.detach() for one in self._parameters],
                    "optimizer": optimizer.state_dict(),
                }
            )

    def _resume(self, optimizer: torch.optim.Optimizer) -> None:
        state = None if self._folder is None else self._folder.load_last()
        if state is None:
            return
        with torch.no_grad():
            self._restore(state["parameters"], self._parameters)
        optimizer.load_state_dict(state["optimizer"])
        self._done, self._errors = state["update"], dict(state["errors"])


@contextmanager
def _given(module: nn.Module) -> Iterator[list[Tensor]]:
    """What a module is given within the context, call by call."""
    given: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
    try:
        yield given
    finally:
        hook.remove()


@contextmanager
def _watched(parts: Sequence[LayerParts]) -> Iterator[dict[int, Seen]]:
    """What the attention of layers is given and says within the context, by their numbers."""
    given: dict[int, Tensor] = {}
    seen: dict[int, Seen] = {}

    def take(number: int) -> Callable[..., None]:
        return lambda module, inputs: given.update({number: inputs[0]})

    def say(number: int) -> Callable[..., None]:
        return lambda module, inputs, output: seen.update({number: Seen(given[number], output)})

    hooks = []
    for number, part in enumerate(parts):
        if (own := part.projections) is not None:
            hooks.append(own.query.register_forward_pre_hook(take(number)))
            hooks.append(own.output.register_forward_hook(say(number)))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
