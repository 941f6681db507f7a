"""What do smaller sizes and other kinds of attention of a checkpoint keep, before any training?

``python -m experiments.first_corrections --checkpoint DIR --data DIR --quality similarity``

The first weights of a supernet around a checkpoint (`supernet.inheritance`) are scored with one
size at a time below the checkpoint's own: as the leading part of the checkpoint's matrices, and
with output layers fitted by least squares. Then with one other kind of attention in all layers: as
it begins, and after local distillation.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import torch
from rich.table import Table

from experiments.harness import Options, Study, note, table_of
from experiments.placement_table import distilled_run
from nas.objectives import QUALITY, QualityMetric
from nas.run.evaluator import validation_quality
from nas.run.layout import INHERITED_FILE
from nas.stages.base import Run
from search_spaces.architecture import Architecture
from search_spaces.space import Choice, SearchSpace
from supernet.building import build_supernet
from supernet.depth import ORDER
from supernet.inheritance.inherit import with_layers
from supernet.inheritance.parts import Weights, stack_name
from supernet.pretrained.checkpoint import read_checkpoint
from supernet.pretrained.space import space_around
from supernet.slices import prefix
from supernet.training.checkpoint import load

OWN = re.compile(r"(outer|output)s\.\d+\.")


def cut(weights: Weights) -> Weights:
    """The weights with the leading part of the largest's output layer for every smaller size."""
    return {
        name: prefix(weights[OWN.sub(r"\1.", name)], *tensor.shape)
        for name, tensor in weights.items()
    }


def smaller_networks(
    space: SearchSpace, own: Architecture, order: list[int]
) -> dict[str, Architecture]:
    """The checkpoint's network with one sort of size smaller in all layers; both; and shallower."""
    found = {}
    heads = "self_num_heads" if own.encoder is None else "num_heads"
    for gene in ("ffn_dim", heads):
        for choice in _choices(space, gene)[:-1]:
            found[f"{gene} {choice}"] = changed(space, own, {gene: choice})
    smallest = {gene: _choices(space, gene)[0] for gene in ("ffn_dim", heads)}
    found["smallest of both"] = changed(space, own, smallest)
    for count in _choices(space, "num_layers")[:-1]:
        found[f"{count} layers"] = with_layers(own, sorted(order[: int(count)]))
    return found


def other_kinds(space: SearchSpace, own: Architecture) -> dict[str, Architecture]:
    """The checkpoint's network with another kind of attention in all layers."""
    gene = "self_attention" if own.encoder is None else "attention"
    found = {str(kind): changed(space, own, {gene: kind}) for kind in _choices(space, gene)}
    return {kind: network for kind, network in found.items() if network != own}


def _choices(space: SearchSpace, gene: str) -> list[Choice]:
    choices = next(slot.choices for slot in space.slots if slot.gene == gene)
    return sorted(choices) if all(isinstance(one, int) for one in choices) else list(choices)


def changed(space: SearchSpace, own: Architecture, genes: dict[str, Choice]) -> Architecture:
    """A network with these choices in all layers."""
    (row,) = space.encode([own])
    for column, slot in enumerate(space.slots):
        if slot.gene in genes:
            row[column] = slot.choices.index(genes[slot.gene])
    return space.decode(row[None])[0]


def scored(run: Run, weights: Weights, networks: dict[str, Architecture]) -> dict[str, float]:
    """The quality of networks with a supernet's weights; less is better."""
    supernet = build_supernet(run.space)
    supernet.load_state_dict(weights)
    supernet.to(run.spec.device).eval()
    found = {}
    for name, network in networks.items():
        values = validation_quality(
            run.quick_task, supernet, network, run.spec.quality, run.spec.device
        )
        found[name] = values[QUALITY]
        note(f"{name}: {values[QUALITY]:.4g}")
    return found


def measure(options: Options) -> dict[str, Any]:
    """All numbers of the study."""
    torch.set_num_threads(options.threads)
    checkpoint = read_checkpoint(options.checkpoint)
    options.work.mkdir(parents=True, exist_ok=True)
    run = distilled_run(options, space_around(checkpoint))
    own = checkpoint.architecture
    first: Weights = load(run.folder.path / INHERITED_FILE)["weights"]
    order = first[f"{stack_name(own)}.{ORDER}"].tolist()
    sizes, kinds = smaller_networks(run.space, own, order), other_kinds(run.space, own)
    return {
        "quality": options.quality,
        "updates": options.updates,
        "order": order,
        "own": scored(run, first, {"own": own})["own"],
        "cut": scored(run, cut(first), sizes),
        "fitted": scored(run, first, sizes),
        "begun": scored(run, first, kinds),
        "distilled": scored(run, run.first_weights(), kinds),
    }


def show(numbers: dict[str, Any]) -> Iterator[Table | str]:
    """Tables of the numbers."""
    sentence = f"{numbers['quality']}, less is better; the checkpoint has {numbers['own']:.4g}"
    yield table_of(
        f"smaller in all layers: {sentence}",
        ["network", "leading part", "outputs fitted"],
        _rows(numbers["cut"], numbers["fitted"]),
    )
    yield table_of(
        f"another kind in all layers: {sentence}",
        ["kind", "at the beginning", f"after {numbers['updates']} updates"],
        _rows(numbers["begun"], numbers["distilled"]),
    )
    yield f"layers, those that are missed most first: {numbers['order']}"


def _rows(before: dict[str, float], after: dict[str, float]) -> list[list[str]]:
    return [[name, f"{value:.4f}", f"{after[name]:.4f}"] for name, value in before.items()]


def met(numbers: dict[str, Any]) -> bool:
    """Whether no fitted size and no distilled kind is further from the checkpoint than before."""
    pairs = (("cut", "fitted"), ("begun", "distilled"))
    return all(
        numbers[after][name] <= value
        for before, after in pairs
        for name, value in numbers[before].items()
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `Study.add_options`."""
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--data", type=Path, required=True, help="folder of nas data prepare")
    parser.add_argument("--quality", default="loss", choices=get_args(QualityMetric))
    parser.add_argument("--updates", type=int, default=50, help="of the local distillation")
    parser.add_argument("--examples", type=int, default=500, help="validation examples")
    parser.add_argument("--threads", type=int, default=1, help="of everything")
    parser.add_argument("--name", default="first_corrections", help="of the results' file")
    parser.add_argument("--work", type=Path, default=Path("runs/first_corrections"))


STUDY = Study(
    name="first_corrections",
    question="What do parts of a checkpoint keep before any training?",
    add_options=add_options,
    measure=measure,
    show=show,
    met=met,
    results=lambda options: str(options.name),
    example="--checkpoint ./all-MiniLM-L6-v2 --data data/texts --quality similarity",
)

if __name__ == "__main__":
    raise SystemExit(STUDY.main())
