"""Output layers fitted anew to what is left of their inputs, without training.

Where a network has fewer neurons or heads than the checkpoint, what reads them makes up for those
that are gone as far as the others tell of them: the least squares of its output's distance from the
checkpoint's, over a few batches. What the removed ones say on average goes into the bias.

Source: He et al., Channel Pruning (2017), section 3.1, and Kwon et al., A Fast Post-Training
Pruning Framework for Transformers (2022), section 4.3, refit by least squares. Here the ridge pulls
towards the weights as they were, so that on those batches nothing is ever worse than they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from search_spaces.space import SearchSpace
from supernet.extraction import StandAlone
from supernet.inheritance.parts import (
    Weights,
    final_states,
    layer_parts,
    real_positions,
    stack_name,
)

RIDGE = 1e-2
"""Of the mean variance of an input: what a change of the weights costs, beside the error. Chosen by
what 6,000 tokens of all-MiniLM-L6-v2 give on others; between 1e-3 and 1e-1 little depends on it."""
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
        means_X = self._sum_X / self._count
        products_KX = self._products_FX[:kept] / self._count
        if bias_D is not None:
            products_KX = products_KX - means_X[:kept, None] * means_X
        inputs = len(self._products_FX)
        grams_KK, wanted_KD = products_KX[:, :kept], products_KX[:, inputs:]
        before_DK = weight_DF[:, :kept].double()
        penalty = (ridge * grams_KK.diagonal().mean()).clamp(min=1e-12)
        ridged_KK = grams_KK + penalty * torch.eye(kept).to(grams_KK)
        change_KD = torch.linalg.solve(ridged_KK, wanted_KD - grams_KK @ before_DK.T)
        after_DK = before_DK + change_KD.T
        if bias_D is None:
            return after_DK.to(weight_DF), None
        after_D = means_X[inputs:] - after_DK @ means_X[:kept]
        return after_DK.to(weight_DF), after_D.to(bias_D)


class Counted:
    """What counts of a batch that is read.

    Attributes:
        real: positions that do, ``(B, N)``; None for all.
    """

    def __init__(self) -> None:
        self.real: Tensor | None = None

    def of(self, x_BND: Tensor) -> Tensor:
        """``(B, N, D)`` → ``(T, D)``."""
        return x_BND.flatten(0, 1) if self.real is None else x_BND[self.real]


@dataclass(frozen=True)
class Output:
    """An output layer of a checkpoint's network.

    Attributes:
        name: of it in the network.
        linear: the layer.
        sizes: what a space calls its sizes below the largest, and the inputs that each leaves.
        known: whether what a smaller size says is the beginning of what the whole layer says; heads
            that share keys would read others.
    """

    name: str
    linear: nn.Linear
    sizes: Mapping[int, int]
    known: bool = True

    @property
    def moments_bytes(self) -> int:
        """Of its `Moments`."""
        inputs = self.linear.in_features
        return 8 * inputs * (inputs + self.linear.out_features)


def outputs_of(teacher: StandAlone, space: SearchSpace) -> list[Output]:
    """The output layers of a network that have others for smaller sizes in a space's supernet."""
    names = {module: name for name, module in teacher.network.named_modules()}
    stack, found = stack_name(teacher.architecture), list[Output]()
    heads_gene = "self_num_heads" if stack == "decoder" else "num_heads"
    for number, part in enumerate(layer_parts(teacher)):
        heads, ffn = part.projections.output, part.ffn.outer
        width = heads.in_features // part.num_heads
        counts = sorted(map(int, space.slot(f"{stack}.{number}.{heads_gene}").choices))[:-1]
        dims = sorted(map(int, space.slot(f"{stack}.{number}.ffn_dim").choices))[:-1]
        of_heads = {count: count * width for count in counts}
        found += [
            Output(names[heads], heads, of_heads, part.groups is None),
            Output(names[ffn], ffn, {dim: dim for dim in dims}),
        ]
    return [output for output in found if output.sizes and space.model.own_outputs]


@torch.no_grad()
def fitted_outputs(teacher: StandAlone, batches: Sequence[Tensor], space: SearchSpace) -> Weights:
    """The output layers of smaller sizes, where the space's supernet has some.

    Args:
        teacher: on its own, with heads and neurons in their order.
        batches: its inputs.
        space: of the supernet.

    Returns:
        Parameters by the names that they would have in the teacher.
    """
    fitted: Weights = {}
    for outputs in _together(outputs_of(teacher, space)):
        moments = _moments(teacher, batches, [output for output in outputs if output.known])
        for output in outputs:
            linear = output.linear
            for size, kept in output.sizes.items():
                found: tuple[Tensor, Tensor | None] = linear.weight[:, :kept], linear.bias
                if output.name in moments:
                    found = moments[output.name].refit(linear.weight, linear.bias, kept)
                fitted[f"{output.name}s.{size}.weight"], bias = found
                if bias is not None:
                    fitted[f"{output.name}s.{size}.bias"] = bias
    return fitted


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
            real = real_positions(teacher, batch)
            final_states(teacher, batch, teacher.architecture)
    finally:
        for one in hooks:
            one.remove()
    return moments
