"""What teaches the kinds of attention of a run's supernet, in all layers or in some of them.

Layers know nothing of each other there (`supernet.inheritance.local`), so that several processes
may teach a part of them each, to the same bits as one that teaches all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from nas.run.layout import DISTIL_CHECKPOINTS, INHERITED_FILE
from nas.run.opened import DISTIL, OpenedRun
from search_spaces.architecture import SKIP
from supernet.inheritance.local import LocalDistillation, LocalReport
from supernet.inheritance.parts import Weights, stack_name
from supernet.pretrained.names import layer_kinds
from supernet.training.checkpoint import CheckpointFolder, load, save

TAUGHT = "taught.pt"
"""In the folder of some layers: what they have learnt in the end."""


def teach(run: OpenedRun, layers: Sequence[int], device: str) -> Iterator[LocalReport]:
    """Teach these layers, from their last checkpoint on, and keep what they have learnt.

    Args:
        run: the run.
        layers: their numbers, ascending.
        device: where to compute.
    """
    assert run.checkpoint is not None
    budget, folder = run.spec.budget.distil, _checkpoints(run, layers)
    local = LocalDistillation(
        run.space,
        load(run.folder.path / INHERITED_FILE)["weights"],
        run.checkpoint,
        inputs_of(run, device),
        updates=budget.updates,
        learning_rate=budget.learning_rate,
        device=device,
        folder=folder,
        layers=layers,
    )
    yield from local.run()
    starts = tuple(f"{stack_name(run.checkpoint.architecture)}.blocks.{n}." for n in layers)
    weights = {name: one for name, one in local.weights().items() if name.startswith(starts)}
    state = {"layers": list(layers), "weights": weights, "errors": local.errors()}
    save(folder.path / TAUGHT, {**state, "digest": run.training_digest(DISTIL)})


def _checkpoints(run: OpenedRun, layers: Sequence[int]) -> CheckpointFolder:
    path = run.folder.path / DISTIL_CHECKPOINTS / f"{layers[0]}-{layers[-1]}"
    digest = f"{run.training_digest(DISTIL)} {','.join(map(str, layers))}"
    return CheckpointFolder(path, digest, run.folder.check)


def parts_left(run: OpenedRun, width: int) -> list[list[int]]:
    """The layers that have not learnt all yet, in parts, each of which `teach` teaches.

    Layers that were begun together stay together, wherever that was, for they go on from one
    checkpoint; the others are dealt out.

    Args:
        run: the run.
        width: into how many parts; where as many were begun, the other layers are one part more.
    """
    left = layers_left(run)
    parts: list[list[int]] = []
    for layers in _begun(run):
        if {*layers} <= {*left}:
            parts.append(layers)
            left = [number for number in left if number not in layers]
    if left:
        new = min(max(1, width - len(parts)), len(left))
        parts += [part.tolist() for part in np.array_split(left, new)]
    return parts


def _begun(run: OpenedRun) -> Iterator[list[int]]:
    """Layers that have a checkpoint together; they may have learnt all since."""
    for path in sorted((run.folder.path / DISTIL_CHECKPOINTS).glob("*")):
        last = CheckpointFolder(path, "").last
        if last.exists():
            digest, _, layers = load(last)["digest"].rpartition(" ")
            if digest == run.training_digest(DISTIL):
                yield [int(number) for number in layers.split(",")]


def layers_left(run: OpenedRun) -> list[int]:
    """Numbers of the layers that have not learnt all yet, ascending; those that attend."""
    assert run.checkpoint is not None
    done = {number for part in _parts(run) for number in part["layers"]}
    kinds = layer_kinds(run.checkpoint.architecture)
    return [n for n, kind in enumerate(kinds) if n not in done and kind != SKIP]


def taught(run: OpenedRun) -> tuple[Weights, dict[str, float]]:
    """The supernet's weights with what all layers have learnt, and how far each kind is.

    Returns:
        Weights by name, and ``LAYER.KIND`` → its error, layers in order.
    """
    weights: Weights = load(run.folder.path / INHERITED_FILE)["weights"]
    errors: dict[str, float] = {}
    for part in sorted(_parts(run), key=lambda part: min(part["layers"])):
        weights |= part["weights"]
        errors |= part["errors"]
    by_layer = sorted(errors.items(), key=lambda item: int(item[0].partition(".")[0]))
    return weights, dict(by_layer)


def _parts(run: OpenedRun) -> list[dict[str, Any]]:
    files = sorted((run.folder.path / DISTIL_CHECKPOINTS).glob(f"*/{TAUGHT}"))
    return [part for part in map(load, files) if part["digest"] == run.training_digest(DISTIL)]


def inputs_of(run: OpenedRun, device: str) -> Callable[[int], Tensor]:
    """The inputs of each update, which its number alone decides; asked for in order, mostly."""
    task, spec, seed = run.quick_task, run.spec, run.training_seed(DISTIL)

    def all_inputs() -> Iterator[Tensor]:
        epoch = 0
        while True:
            for batch in task.batches(spec.budget.supernet, seed=seed, epoch=epoch, device=device):
                yield task.inputs(batch)
            epoch += 1

    stream, position = all_inputs(), 0

    def inputs(update: int) -> Tensor:
        nonlocal stream, position
        if update < position:
            stream, position = all_inputs(), 0
        while position < update:
            next(stream)
            position += 1
        position += 1
        return next(stream)

    return inputs
