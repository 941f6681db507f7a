"""A cost and quality model of a small space in which it is known what every choice is good for.

Two choices are planted to be useless: a kind of attention that is dearer and worse than both
others, and an FFN size that costs what it costs and is worth less than the smallest. All networks
can be listed, so what any other choice is worth is exact: the share of the true front's
hypervolume that is lost without it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nas.search.pareto import hypervolume, non_dominated
from nas.search.pruning.evidence import Candidate, candidates
from search_spaces.settings import ImageInput, ModelSettings
from search_spaces.space import Choice, Genotypes, SearchSpace, Slot
from search_spaces.variation import enumerate_all

Floats = NDArray[np.float64]

KINDS = ("softmax", "linear", "omni")
WIDTHS, FFN, HEADS, DEPTH = (8, 16, 32, 64), (8, 16, 32), (1, 2), 3


def _space() -> SearchSpace:
    slots = [
        Slot("encoder", "embed_dim", None, WIDTHS),
        Slot("encoder", "num_layers", None, tuple(range(1, DEPTH + 1))),
    ]
    for layer in range(DEPTH):
        slots.append(Slot("encoder", "attention", layer, KINDS))
        slots.append(Slot("encoder", "num_heads", layer, HEADS))
        slots.append(Slot("encoder", "ffn_dim", layer, FFN))
    model = ModelSettings(ImageInput(8, 2, 1), max_length=16, num_classes=10, head_dim=8)
    return SearchSpace("planted", "classification", model, tuple(slots))


SPACE = _space()


class Planted:
    """One such model; everything that is not planted is drawn with the seed."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.bad_kind = KINDS[rng.integers(len(KINDS))]
        self.bad_ffn = FFN[rng.integers(1, len(FFN))]
        strong, weak = (kind for kind in KINDS if kind != self.bad_kind)
        worth = {self.bad_kind: -0.3, strong: rng.uniform(0.1, 0.4), weak: 0.0}
        price = {self.bad_kind: 2.2, strong: 1.6, weak: 1.0}
        self._kind_worth = np.array([worth[kind] for kind in KINDS])
        self._kind_price = np.array([price[kind] for kind in KINDS])
        self._ffn_worth = rng.uniform(0.2, 0.6) * np.log(np.array(FFN) / FFN[0])
        self._ffn_worth[FFN.index(self.bad_ffn)] = -0.1
        self._layers = np.exp(rng.normal(0, 0.4, DEPTH))
        self._width, self._heads = rng.uniform(0.5, 1.2), rng.uniform(0.1, 0.4)

    @property
    def useless(self) -> set[tuple[str, Choice]]:
        """The two planted choices."""
        return {("encoder.attention", self.bad_kind), ("encoder.ffn_dim", self.bad_ffn)}

    def __call__(self, rows: Genotypes) -> Floats:
        """Loss and cost of networks, ``(N, 2)``."""
        column, there = SPACE.slot_index, SPACE.active(rows)
        width = np.array(WIDTHS)[rows[:, column["encoder.embed_dim"]]]
        worth, cost = self._width * np.log(width), np.zeros(len(rows))
        for layer in range(DEPTH):
            kind, heads, ffn = (
                rows[:, column[f"encoder.{layer}.{gene}"]]
                for gene in ("attention", "num_heads", "ffn_dim")
            )
            on = there[:, column[f"encoder.{layer}.attention"]]
            gain = 0.5 + self._kind_worth[kind] + self._ffn_worth[ffn] + self._heads * heads
            worth += on * self._layers[layer] * gain
            states = 8 * np.array(HEADS)[heads] * self._kind_price[kind]
            cost += on * width * (np.array(FFN)[ffn] + states)
        return np.column_stack([3 * np.exp(-0.35 * worth), cost])


class Rugged(Planted):
    """The same with much that has nothing to do with the planted: hard to learn from few networks.

    Args:
        seed: as before.
        amount: deviation of the logarithm of the losses by it.
    """

    WAVES = 40

    def __init__(self, seed: int, amount: float) -> None:
        super().__init__(seed)
        rng = np.random.default_rng([seed, 2])
        self._amount = amount / np.sqrt(self.WAVES / 2)
        self._directions = rng.normal(0, 1.5, (len(SPACE.slots), self.WAVES))
        self._begins = rng.uniform(0, 2 * np.pi, self.WAVES)

    def __call__(self, rows: Genotypes) -> Floats:
        """See `Planted`."""
        points = super().__call__(rows)
        waves = np.cos(rows @ self._directions + self._begins).sum(axis=1)
        points[:, 0] *= np.exp(self._amount * waves)
        return points


class Truth:
    """All networks of the space with their true objectives."""

    def __init__(self, model: Planted) -> None:
        self.rows = enumerate_all(SPACE)
        self.logs = np.log(model(self.rows))
        self._low, self._high = self.logs.min(axis=0), self.logs.max(axis=0)
        self._whole = self._volume(np.ones(len(self.rows), dtype=np.bool_))

    def reach(self, space: SearchSpace) -> float:
        """Share of the true front's hypervolume that a smaller space still has."""
        offered = [
            np.isin(np.array(root.choices), np.array(slot.choices))
            for root, slot in zip(SPACE.slots, space.slots, strict=True)
        ]
        has = np.stack([known[self.rows[:, c]] for c, known in enumerate(offered)], axis=1)
        kept: NDArray[np.bool_] = (has | ~SPACE.active(self.rows)).all(axis=1)
        return self._volume(kept) / self._whole

    def worth(self) -> dict[tuple[str, Choice], float]:
        """What every choice is worth: the share of the hypervolume that is lost without it."""
        return {(one.name, one.choice): self._lost(one) for one in candidates(SPACE)}

    def _lost(self, candidate: Candidate) -> float:
        has: NDArray[np.bool_] = candidate.present(SPACE, self.rows).any(axis=1)
        return 1 - self._volume(~has) / self._whole

    def _volume(self, kept: NDArray[np.bool_]) -> float:
        points = (self.logs[kept] - self._low) / (self._high - self._low)
        return hypervolume(points[non_dominated(points)], np.full(2, 1.1))
