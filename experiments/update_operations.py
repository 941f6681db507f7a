"""How many operations does an update of a supernet ask a GPU for, and how often is it waited for?

``python -m experiments.update_operations --space wmt14``

Counted without a GPU: the supernet is made of fake tensors, which have a shape and no numbers,
under bf16 autocast with its casts. Where a CPU has ways of its own, those of a GPU are taken:
dropout and fused attention are one operation each. What only looks at a tensor in another way or
allocates memory is not counted. An operation on a list of tensors counts once; CUDA does it at once
where they have one precision and the same strides, and otherwise tensor by tensor, which is counted
apart.

A number that Python reads would have to be known, so that a fake update ends there with an error;
the one time that an update reads its losses is counted.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from experiments.harness import Options, Study, table_of
from nas.request.presets import budget_for
from search_spaces.architecture import Architecture
from search_spaces.loading import load_space
from search_spaces.space import SearchSpace
from supernet.building import build_supernet
from supernet.data.text_batches import PairBatch
from supernet.tasks.opening import open_task
from supernet.training.loop import Trainer
from supernet.training.parallel import Group
from supernet.training.sampling import SandwichSampler, SingleNetwork, UniformSampler
from supernet.training_settings import TrainingSettings

MOST = 1000  # operations of an update
FREE = (
    *("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided"),
    *("_unsafe_view", "device", "_record_function_enter_new", "_record_function_exit"),
)
ALIGNED = 8  # elements that rows of a bias begin at


class GpuOperations(TorchDispatchMode):
    """Counts what a GPU would be asked for while it is entered.

    Attributes:
        forward: operation → how often.
        backward: the same, of gradients.
        apart: what operations on lists are more than one, where CUDA takes them apart.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.forward: Counter[str] = Counter()
        self.backward: Counter[str] = Counter()
        self.apart = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func._opname
        if not func.is_view and name not in FREE:
            back = torch._C._current_autograd_node() is not None
            (self.backward if back else self.forward)[name] += 1
            if name.startswith("_foreach"):
                self.apart += _launches(name, args) - 1
        return func(*args, **(kwargs or {}))


def _launches(name: str, args: Sequence[Any]) -> int:
    """As how many operations CUDA does one on lists."""
    lists = [one for one in args if isinstance(one, list | tuple) and isinstance(one[0], Tensor)]
    # Copying alone also changes the precision at once.
    precise = [lists[:1], lists[1:]] if name == "_foreach_copy_" else [lists]
    alike = all(len({x.dtype for one in group for x in one}) <= 1 for group in precise)
    strides = all(len({x.stride() for x in row}) == 1 for row in zip(*lists, strict=True))
    return 1 if alike and strides else len(lists[0])


class CountedGroup(Group):
    """A group of one that does not read the losses, which fake tensors have not.

    Attributes:
        waits: how often they would have been read.
    """

    def __init__(self) -> None:
        self.waits = 0

    def sum(self, values: Tensor) -> list[float]:
        """See `Group.sum`."""
        self.waits += 1
        return [0.0] * len(values)


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """In it tensors are fake, and what has a way of its own on a CPU is done as on a GPU."""
    with (
        patch("supernet.layers.dropout", _dropout),
        patch("supernet.attention.softmax.fused_attention", _attention),
        patch("torch.nn.utils.clip_grad._has_foreach_support", lambda *given: True),
        patch("torch.nn.Module.to", lambda model, device: model),  # fakes cannot be moved
        FakeTensorMode(),
    ):
        yield


def _dropout(x: Tensor, rate: float) -> Tensor:
    return torch.native_dropout(x, rate, True)[0]


def _attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """Torch's memory-efficient attention, which takes a bias of aligned rows."""
    if mask is not None:
        if mask.shape[-1] % ALIGNED:
            mask = F.pad(mask, (0, -mask.shape[-1] % ALIGNED))[..., : mask.shape[-1]]
        mask = mask.expand(*q.shape[:3], k.shape[2])
    out: Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(
        q, k, v, mask, True, 0.0, is_causal
    )[0]
    return out


def pairs(space: SearchSpace, settings: TrainingSettings) -> PairBatch:
    """A batch of as many pairs of the workload's lengths as fit, without padding."""
    source, target = int(space.workload["source"]), int(space.workload["target"])
    rows = settings.max_tokens // max(source, target)
    sources, targets = (torch.ones(rows, n, dtype=torch.int64) for n in (source, target))
    masks = [tokens != 0 for tokens in (sources, targets)]
    return PairBatch(sources[:, 0], sources, masks[0], targets, targets, masks[1], rows * target)


def counted(
    space: SearchSpace, settings: TrainingSettings, networks: Sequence[Architecture]
) -> list[dict[str, Any]]:
    """What an update with each network asks for, in the second of two updates."""
    task, settings = open_task(space, "synthetic", None, 0), replace(settings, bfloat16=True)
    found = []
    for network in networks:
        with pretended_gpu():
            group, batch = CountedGroup(), pairs(space, settings)
            model = build_supernet(space, settings.dropout).train()
            sampler = SingleNetwork(network)
            trainer = Trainer(model, sampler, [network], task, settings, seed=0, group=group)
            trainer._update([batch])  # makes what later updates use again
            group.waits = 0
            with GpuOperations() as operations:
                trainer._update([batch])
        found.append(
            {
                "network": network.id,
                "operations": operations.forward.total() + operations.backward.total(),
                "apart": operations.apart,
                "waits": group.waits,
                "forward": dict(operations.forward),
                "backward": dict(operations.backward),
            }
        )
    return found


def drawn(space: SearchSpace, count: int, seed: int) -> dict[str, list[Architecture]]:
    """Networks as the supernet's training draws them, and the largest with kinds that are drawn."""
    random = UniformSampler(space, 1, seed)
    largest = SandwichSampler(space, 1, seed)
    return {
        "as drawn": [random.draw()[0] for _ in range(count)],
        "largest": [largest.draw()[0] for _ in range(count)],
    }


def measure(options: Options) -> dict[str, Any]:
    """Counts of all networks."""
    space = load_space(options.space)
    settings = budget_for(space, options.preset, {}).supernet
    networks = drawn(space, options.networks, options.seed)
    return {
        "space": space.name,
        "preset": options.preset,
        "networks": {name: counted(space, settings, some) for name, some in networks.items()},
    }


def show(numbers: Mapping[str, Any]) -> Iterator[Table]:
    """How many operations of an update, and which."""
    groups: Mapping[str, list[dict[str, Any]]] = numbers["networks"]
    totals = {name: [one["operations"] for one in group] for name, group in groups.items()}
    yield table_of(
        f"operations of an update of {numbers['space']}, preset {numbers['preset']}",
        ("networks", "number", "least", "median", "most", "apart (median)", "waits"),
        [
            (
                name,
                len(group),
                min(totals[name]),
                f"{np.median(totals[name]):.0f}",
                max(totals[name]),
                f"{np.median([one['apart'] for one in group]):.0f}",
                max(one["waits"] for one in group),
            )
            for name, group in groups.items()
        ],
    )
    for name, group in groups.items():
        ways = [{way: Counter(one[way]) for way in ("forward", "backward")} for one in group]
        sums = {way: sum((one[way] for one in ways), Counter[str]()) for way in ways[0]}
        both = sums["forward"] + sums["backward"]
        rows = [
            (operation, *(f"{way[operation] / len(group):.1f}" for way in (*sums.values(), both)))
            for operation, _ in both.most_common()
        ]
        heads = ("operation", "forward", "backward", "both")
        yield table_of(f"which they are, in the mean: {name}", heads, rows)


def met(numbers: Mapping[str, Any]) -> bool:
    """Whether every update keeps to the marks: `MOST` operations, one wait."""
    every = [one for group in numbers["networks"].values() for one in group]
    return all(one["operations"] <= MOST and one["waits"] == 1 for one in every)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("--space", default="wmt14", help="of translation; default: %(default)s")
    parser.add_argument("--preset", default="standard", help="default: %(default)s")
    parser.add_argument("--networks", type=int, default=20, help="of each sort")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")


STUDY = Study(
    "update_operations",
    "How many operations does an update ask a GPU for, and how often is it waited for?",
    add_options,
    measure,
    show,
    met,
    example="--space wmt14 --networks 5",
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
