"""Output layers fitted anew to what is left of their inputs, without training.

Where a network has fewer neurons or heads than the checkpoint, what reads them makes up for those
that are gone as far as the others tell of them: the least squares of its output's distance from the
checkpoint's, over a few batches. What the removed ones say on average goes into the bias. Which
ones go is decided by the same error: always those that the others can best make up for.

Source: He et al., Channel Pruning (2017), section 3.1, and Kwon et al., A Fast Post-Training
Pruning Framework for Transformers (2022), section 4.3, refit by least squares. Here the ridge pulls
towards the weights as they were, so that on those batches nothing is ever worse than they are. The
order is that of Hassibi and Stork, Optimal Brain Surgeon (1993), equation 5, for groups of inputs
as Kurtic et al., ZipLM (2023), section 3.1, remove them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from search_spaces.space import SearchSpace
from search_spaces.turns import give_way
from supernet.blocks import Projections
from supernet.extraction import StandAlone
from supernet.inheritance.parts import (
    Weights,
    final_states,
    layer_parts,
    real_positions,
    stack_name,
)
from supernet.layers import ElasticFeedForward

RIDGE = 1e-2
"""Of the mean variance of an input: what a change of the weights costs, beside the error. Chosen by
what 6,000 tokens of all-MiniLM-L6-v2 give on others; between 1e-3 and 1e-1 little depends on it."""
ELIMINATION_STEPS = 256
"""Into which the removal of all groups is cut: one at a time takes minutes where they are many."""
MOMENTS_BYTES = 1 << 31
"""Of the moments that are held at once; for more the batches are read again."""


class Moments:
    """First and second moments of a linear layer's inputs, and with what it should say.

    Args:
        inputs: F.
        outputs: D.
        device: where they are.
    """

    def __init__(self, inputs: int, outputs: int, device: torch.device) -> None:
        self._count = 0
        self._sum_X = torch.zeros(inputs + outputs, dtype=torch.float64, device=device)
        self._products_FX = torch.zeros(
            inputs, inputs + outputs, dtype=torch.float64, device=device
        )

    @classmethod
    def of(cls, linear: nn.Linear) -> Self:
        """None yet, of a layer."""
        return cls(linear.in_features, linear.out_features, linear.weight.device)

    def add(self, x_BNF: Tensor, y_BND: Tensor, real_BN: Tensor | None) -> None:
        """Count positions, where they are real, with what should be said at each."""
        both_BNX = torch.cat((x_BNF, y_BND), dim=-1)
        both_TX = both_BNX.flatten(0, 1) if real_BN is None else both_BNX[real_BN]
        both_TX = both_TX.double()
        self._count += len(both_TX)
        self._sum_X += both_TX.sum(dim=0)
        self._products_FX += both_TX[:, : x_BNF.shape[-1]].T @ both_TX

    def refit(
        self, weight_DF: Tensor, bias_D: Tensor | None, kept: int, ridge: float = RIDGE
    ) -> tuple[Tensor, Tensor | None]:
        """The weights that say it best with the first `kept` inputs.

        Args:
            weight_DF: of all inputs.
            bias_D: None for a layer that has none, and then gets none.
            kept: K.
            ridge: see `RIDGE`.

        Returns:
            ``(D, K)`` and ``(D,)``, in the precision of the weights.
        """
        products_KX = self._spread(kept, bias_D is not None)
        inputs = len(self._products_FX)
        grams_KK, wanted_KD = products_KX[:, :kept], products_KX[:, inputs:]
        before_DK = weight_DF[:, :kept].double()
        change_KD = torch.linalg.solve(_ridged(grams_KK, ridge), wanted_KD - grams_KK @ before_DK.T)
        after_DK = before_DK + change_KD.T
        if bias_D is None:
            return after_DK.to(weight_DF), None
        means_X = self._sum_X / self._count
        after_D = means_X[inputs:] - after_DK @ means_X[:kept]
        return after_DK.to(weight_DF), after_D.to(bias_D)

    def order(
        self, weight_DF: Tensor, biased: bool, groups: int, least: int, ridge: float = RIDGE
    ) -> Tensor:
        """Groups of inputs, those first that the others can least make up for.

        One after the other is removed, each time the one that costs least when what reads the
        rest is fitted anew; where they are many, a few at a time.

        Args:
            weight_DF: of all inputs; what they say is what should be said.
            biased: whether there is a bias to take up means.
            groups: G, of equally many neighbours.
            least: stop when so many are left: among the first of them the order means nothing.
            ridge: see `RIDGE`.

        Returns:
            A permutation ``(G,)``.
        """
        inputs, step = len(self._products_FX), -(-groups // ELIMINATION_STEPS)
        grams_FF = self._spread(inputs, biased)[:, :inputs]
        inverse_LL = torch.linalg.inv(_ridged(grams_FF, ridge))  # L inputs are left
        weight_LD = weight_DF.T.double()
        left_G, removed = torch.arange(groups, device=weight_DF.device), list[Tensor]()
        while len(left_G) > least:
            give_way()
            costs_G = _elimination_costs(inverse_LL, weight_LD, len(left_G))
            gone = costs_G.topk(min(step, len(left_G) - least), largest=False).indices.flip(0)
            removed.insert(0, left_G[gone])
            stays_G = torch.ones_like(left_G, dtype=torch.bool)
            stays_G[gone] = False
            stays_L = stays_G.repeat_interleave(inputs // groups)
            columns_LR = inverse_LL[:, ~stays_L]
            # What the removed ones said, and what was known of them, moves to the rest.
            moved_LR = torch.linalg.solve(columns_LR[~stays_L], columns_LR[stays_L], left=False)
            weight_LD = weight_LD[stays_L] - moved_LR @ weight_LD[~stays_L]
            inverse_LL = inverse_LL[stays_L][:, stays_L] - moved_LR @ columns_LR[stays_L].T
            left_G = left_G[stays_G]
        return torch.cat([left_G, *removed])

    def reorder(self, order_F: Tensor) -> None:
        """Put the inputs in another order."""
        places_X = torch.cat((order_F, torch.arange(len(order_F), len(self._sum_X)).to(order_F)))
        self._sum_X = self._sum_X[places_X]
        self._products_FX = self._products_FX[order_F][:, places_X]

    def _spread(self, kept: int, biased: bool) -> Tensor:
        """Mean products of the first inputs with all and the outputs; about means with a bias."""
        products_KX = self._products_FX[:kept] / self._count
        if not biased:
            return products_KX
        means_X = self._sum_X / self._count
        return products_KX - means_X[:kept, None] * means_X


def _ridged(grams_KK: Tensor, ridge: float) -> Tensor:
    """With what a change of the weights costs on the diagonal."""
    penalty = (ridge * grams_KK.diagonal().mean()).clamp(min=1e-12)
    return grams_KK + penalty * torch.eye(len(grams_KK)).to(grams_KK)


def _elimination_costs(inverse_LL: Tensor, weight_LD: Tensor, groups: int) -> Tensor:
    """By how much the error grows without each group of inputs, ``(G,)``."""
    sizes = (groups, len(inverse_LL) // groups)
    blocks_GWW = inverse_LL.view(*sizes, *sizes).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    weight_GWD = weight_LD.view(*sizes, -1)
    costs_G: Tensor = (weight_GWD * torch.linalg.solve(blocks_GWW, weight_GWD)).sum(dim=(1, 2))
    return costs_G


@dataclass(frozen=True)
class Output:
    """An output layer of a checkpoint's network.

    Attributes:
        name: of it in the network.
        linear: the layer.
        groups: of inputs that stay or go together: heads, or single neurons.
        sizes: what a space calls its sizes below the largest, and the groups that each leaves.
        reorder: puts the groups in another order in the network; None where each has its place.
        known: whether what a smaller size says is the beginning of what the whole layer says; heads
            that share keys would read others.
    """

    name: str
    linear: nn.Linear
    groups: int
    sizes: Sequence[int]
    reorder: Callable[[Tensor], None] | None
    known: bool = True

    @property
    def moments_bytes(self) -> int:
        """Of its `Moments`."""
        inputs = self.linear.in_features
        return 8 * inputs * (inputs + self.linear.out_features)


def outputs_of(teacher: StandAlone, space: SearchSpace) -> list[Output]:
    """The output layers of a network that a space has smaller sizes of."""
    names = {module: name for name, module in teacher.network.named_modules()}
    stack, found = stack_name(teacher.architecture), list[Output]()
    heads_gene = "self_num_heads" if stack == "decoder" else "num_heads"
    for number, part in enumerate(layer_parts(teacher)):
        if (own := part.projections) is not None:
            counts = sorted(map(int, space.slot(f"{stack}.{number}.{heads_gene}").choices))[:-1]
            move = None if part.learns else partial(order_heads, own, part.num_heads)
            heads = own.output
            found.append(
                Output(names[heads], heads, part.num_heads, counts, move, part.groups is None)
            )
        ffn = part.ffn.outer
        dims = sorted(map(int, space.slot(f"{stack}.{number}.ffn_dim").choices))[:-1]
        found.append(
            Output(names[ffn], ffn, ffn.in_features, dims, partial(order_neurons, part.ffn))
        )
    return [output for output in found if output.sizes]


@torch.no_grad()
def fitted_outputs(teacher: StandAlone, batches: Sequence[Tensor], space: SearchSpace) -> Weights:
    """Put heads and neurons in order, and fit the output layers of smaller sizes.

    Args:
        teacher: on its own; what it says does not change beyond rounding.
        batches: its inputs.
        space: of the supernet.

    Returns:
        Parameters by the names that they would have in the teacher; none, where sizes of the
        supernet have no output layers of their own.
    """
    fitted: Weights = {}
    moves = list[Callable[[], None]]()  # at the end: the batches are read from the same network
    for outputs in _together(outputs_of(teacher, space)):
        moments = _moments(teacher, batches, [output for output in outputs if output.known])
        for output in outputs:
            weight_DF, bias = output.linear.weight, output.linear.bias
            known, width = moments.get(output.name), weight_DF.shape[1] // output.groups
            if known is not None and output.reorder is not None:
                order = known.order(weight_DF, bias is not None, output.groups, min(output.sizes))
                moves.append(partial(output.reorder, order))
                order_F = torch.arange(weight_DF.shape[1]).to(order).view(-1, width)[order]
                known.reorder(order_F.flatten())
                weight_DF = weight_DF[:, order_F.flatten()]
            for size in output.sizes if space.model.own_outputs else ():
                found: tuple[Tensor, Tensor | None] = weight_DF[:, : size * width], bias
                if known is not None:
                    found = known.refit(weight_DF, bias, size * width)
                fitted[f"{output.name}s.{size}.weight"] = found[0]
                if found[1] is not None:
                    fitted[f"{output.name}s.{size}.bias"] = found[1]
    for move in moves:
        move()
    return fitted


def order_heads(projections: Projections, num_heads: int, order_H: Tensor) -> None:
    """Put heads in another order, which changes no output beyond rounding.

    Args:
        projections: with as many heads of keys as of queries.
        num_heads: how many.
        order_H: numbers of the heads, first to last.
    """
    for linear in (projections.query, projections.key, projections.value):
        for parameter in (linear.weight, linear.bias):
            if parameter is not None:
                parts = parameter.data.unflatten(0, (num_heads, -1))
                parameter.data = parts[order_H].flatten(0, 1)
    parts = projections.output.weight.data.unflatten(1, (num_heads, -1))
    projections.output.weight.data = parts[:, order_H].flatten(1)


def order_neurons(ffn: ElasticFeedForward, order_F: Tensor) -> None:
    """Put the neurons of a feed-forward network in another order, which changes no output."""
    for linear in (ffn.inner, ffn.gate):
        if linear is not None:
            linear.weight.data = linear.weight.data[order_F]
            if linear.bias is not None:
                linear.bias.data = linear.bias.data[order_F]
    ffn.outer.weight.data = ffn.outer.weight.data[:, order_F]


def _together(outputs: Sequence[Output]) -> Iterator[list[Output]]:
    """Neighbours whose moments fit into memory; each by itself where they are larger."""
    group, held = list[Output](), 0
    for output in outputs:
        if group and held + output.moments_bytes > MOMENTS_BYTES:
            yield group
            group, held = [], 0
        group.append(output)
        held += output.moments_bytes
    if group:
        yield group


def _moments(
    teacher: StandAlone, batches: Sequence[Tensor], outputs: Sequence[Output]
) -> dict[str, Moments]:
    """The moments of layers' inputs with what they say themselves, at all real positions."""
    moments = {output.name: Moments.of(output.linear) for output in outputs}
    real: Tensor | None = None

    def hook(name: str) -> Callable[..., None]:
        return lambda module, given, said: moments[name].add(given[0], said, real)

    hooks = [output.linear.register_forward_hook(hook(output.name)) for output in outputs]
    try:
        for batch in batches:
            give_way()
            real = real_positions(teacher, batch)
            final_states(teacher, batch, teacher.architecture)
    finally:
        for one in hooks:
            one.remove()
    return moments
