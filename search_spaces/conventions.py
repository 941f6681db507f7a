"""Named ways of counting parameters and floating-point operations.

Published tables do not count alike, so a number without its convention means little. All of them
here count a multiply-add as two operations, for a batch of one and one forward pass (translation:
teacher-forced). None counts additions of biases and residuals, activations, softmax
exponentials, pooling or embedding look-ups.

`matmul` is what torch's FlopCounterMode counts of our networks, to the last operation, with two
exceptions, where a definition is counted and not how it is computed. Relative keys are counted as a
product of all queries with all keys, N × N, where our kernel needs N × (2R + 1). Causal linear
attention is counted as the recurrence, one state of features × values read and written a position;
it is computed in chunks of 64, within which queries meet keys, so torch counts 2 · 64 · (features +
values) more for each position and head, 1.3 to 2.5 times as much for that layer's kernel. Tests
hold both differences to the number.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import NamedTuple

from search_spaces.errors import UnknownNameError


class Tally(NamedTuple):
    """Counts of one part of a network, for a batch of one and one forward pass.

    Attributes:
        params: learned numbers.
        products: multiply-adds of linear layers, convolutions and matrix products.
        linear_attention: multiply-adds of the products inside linear attention (cosFormer,
            norm-linear, Performer), which published tables leave out.
        scalings: numbers that are multiplied one by one: each feature of a norm, of a scaled
            query, of a divided output, and of cosFormer's cosine weights.
    """

    params: int = 0
    products: int = 0
    linear_attention: int = 0
    scalings: int = 0

    def plus(self, other: Tally) -> Tally:
        """Both parts together."""
        return Tally(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class Convention:
    """What one way of counting includes.

    Attributes:
        name: what users call it.
        description: one sentence.
        linear_attention: count the products inside linear attention.
        scalings: count numbers multiplied one by one (norms, scaled queries, cosine weights).
        embeddings: count embedding tables, patch convolution, class token and positions.
        output_layer: count the classifier, or the product with the target embeddings.
    """

    name: str
    description: str
    linear_attention: bool = True
    scalings: bool = True
    embeddings: bool = True
    output_layer: bool = True

    def flops(self, tally: Tally) -> int:
        """Floating-point operations of a part, as this convention counts them."""
        macs = tally.products
        if self.linear_attention:
            macs += tally.linear_attention
        if self.scalings:
            macs += tally.scalings
        return 2 * macs


CONVENTIONS: dict[str, Convention] = {
    convention.name: convention
    for convention in (
        Convention(
            "true",
            "Everything that multiplies: matrix products, linear and omnidirectional attention, "
            "norms and scalings.",
        ),
        Convention(
            "matmul",
            "Matrix products only, those of linear attention included; what "
            "torch.utils.flop_counter sees, but for relative keys and causal linear attention, "
            "which are counted by their definition.",
            scalings=False,
        ),
        Convention(
            "torchprofile",
            "The published count: linear layers, convolutions, matrix products, norms and "
            "scalings, but nothing inside an einsum, so linear attention's products are free.",
            linear_attention=False,
        ),
        Convention(
            "hat",
            "HAT's tables: as torchprofile at 30 source and 30 target tokens, without embeddings "
            "and output layer in parameters and operations.",
            linear_attention=False,
            embeddings=False,
            output_layer=False,
        ),
    )
}


def find_convention(name: str) -> Convention:
    """The convention of that name.

    Raises:
        UnknownNameError: with the nearest name and all names there are.
    """
    if name in CONVENTIONS:
        return CONVENTIONS[name]
    near = difflib.get_close_matches(name, CONVENTIONS, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise UnknownNameError(
        f"unknown FLOPs convention {name!r}{hint}; there are {', '.join(CONVENTIONS)}"
    )
