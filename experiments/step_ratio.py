"""A supernet's training step against the step of a fixed network of the same shape, in turns.

Shapes: B batch, C classes or V target vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from experiments.plain_network import plain_twin
from experiments.plain_translation import plain_translation
from search_spaces.architecture import Architecture, AttentionKind
from search_spaces.costs import flops
from search_spaces.operators import largest
from search_spaces.settings import ImageInput, TokenInput
from search_spaces.space import SearchSpace
from supernet.loss import IGNORED, smoothed_cross_entropy
from supernet.models import build_classifier_supernet
from supernet.sequence_models import build_translation_supernet

MAX_BATCH = 64
BATCH_FLOPS = 10**10  # large networks get fewer examples, so that a step takes a second at most
WARM_UP_STEPS = 3
MIN_ROUNDS = 15


@dataclass(frozen=True)
class StepRatio:
    """A supernet's step against a fixed network's.

    Attributes:
        attention: kind of all layers.
        batch: examples; target tokens, padding included, of a translation space.
        threads: that torch used.
        rounds: steps of each network that were timed.
        elastic_ms: median of the supernet's.
        plain_ms: median of the fixed network's.
        ratio: median over the rounds of one by the other.
        low: first quartile of the rounds' ratios.
        high: third quartile.
    """

    attention: str
    batch: int
    threads: int
    rounds: int
    elastic_ms: float
    plain_ms: float
    ratio: float
    low: float
    high: float


def largest_network(space: SearchSpace, kind: AttentionKind) -> Architecture:
    """The largest network with one attention kind everywhere."""
    genes = {slot.gene_name for slot in space.slots}
    narrowed = space.restrict({name: [kind] for name in genes if name.endswith("attention")})
    return narrowed.decode(largest(narrowed))[0]


def step_ratio(space: SearchSpace, kind: AttentionKind, seconds: float) -> StepRatio:
    """Time both networks in turns.

    Args:
        space: an encoder space.
        kind: attention kind of all layers, softmax or linear.
        seconds: how long to take turns; at least `MIN_ROUNDS` rounds are made.
    """
    torch.manual_seed(0)
    architecture = largest_network(space, kind)
    supernet = build_classifier_supernet(space)
    plain = plain_twin(supernet, architecture)
    inputs, labels_B = _batch(space, _batch_size(space, architecture))
    logits = partial(supernet, inputs, architecture), partial(plain, inputs)
    return _compared(supernet, plain, logits, labels_B, kind, seconds)


def translation_step_ratio(space: SearchSpace, seconds: float) -> StepRatio:
    """As `step_ratio`, of a translation space, with softmax attention everywhere.

    Args:
        space: a translation space.
        seconds: how long to take turns.
    """
    torch.manual_seed(0)
    architecture = largest_network(space, "softmax")
    supernet = build_translation_supernet(space)
    plain = plain_translation(supernet, architecture)
    source_BM, target_BN, labels_BN = _sentences(space, _batch_size(space, architecture))
    logits = (
        lambda: supernet(source_BM, target_BN, architecture).flatten(0, 1),
        lambda: plain(source_BM, target_BN).flatten(0, 1),
    )
    return _compared(supernet, plain, logits, labels_BN.flatten(), "softmax", seconds)


def _batch_size(space: SearchSpace, architecture: Architecture) -> int:
    operations = flops(space.model, space.task, architecture)
    return max(1, min(MAX_BATCH, BATCH_FLOPS // operations))


def _compared(
    supernet: nn.Module,
    plain: nn.Module,
    logits: tuple[Callable[[], Tensor], Callable[[], Tensor]],
    labels: Tensor,
    kind: AttentionKind,
    seconds: float,
) -> StepRatio:
    elastic_logits, plain_logits = logits
    with torch.inference_mode():
        assert torch.allclose(elastic_logits(), plain_logits(), atol=1e-4)
    elastic_step = _step(supernet, elastic_logits, labels)
    plain_step = _step(plain, plain_logits, labels)
    for _ in range(WARM_UP_STEPS):
        elastic_step()
        plain_step()
    pairs = np.array(list(_turns(elastic_step, plain_step, seconds)))
    ratios = pairs[:, 0] / pairs[:, 1]
    low, middle, high = np.percentile(ratios, [25, 50, 75]).tolist()
    elastic_ms, plain_ms = (1000 * np.median(pairs, axis=0)).tolist()
    return StepRatio(
        attention=kind,
        batch=len(labels),
        threads=torch.get_num_threads(),
        rounds=len(pairs),
        elastic_ms=elastic_ms,
        plain_ms=plain_ms,
        ratio=middle,
        low=low,
        high=high,
    )


def _batch(space: SearchSpace, count: int) -> tuple[Tensor, Tensor]:
    """Random examples of full length."""
    source, generator = space.model.input, torch.Generator().manual_seed(0)
    labels = torch.randint(space.model.num_classes or 1, (count,), generator=generator)
    if isinstance(source, ImageInput):
        shape = (count, source.channels, source.image_size, source.image_size)
        return torch.randn(shape, generator=generator), labels
    length = space.model.max_length - space.model.class_token
    return torch.randint(1, source.vocab_size, (count, length), generator=generator), labels


def _sentences(space: SearchSpace, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random sources, targets and labels of 13 to 16 tokens."""
    source, generator = space.model.input, torch.Generator().manual_seed(0)
    assert isinstance(source, TokenInput)
    real_BN = torch.arange(16) < torch.randint(13, 17, (count, 1), generator=generator)
    target_vocab = source.target_vocab_size or source.vocab_size
    source_BN, target_BN, labels_BN = (
        torch.randint(1, rows, real_BN.shape, generator=generator)
        for rows in (source.vocab_size, target_vocab, target_vocab)
    )
    return source_BN * real_BN, target_BN * real_BN, labels_BN.masked_fill(~real_BN, IGNORED)


def _step(model: nn.Module, forward: Callable[[], Tensor], labels: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        smoothed_cross_entropy(forward(), labels).backward()
        optimizer.step()

    return step


def _turns(
    first: Callable[[], None], second: Callable[[], None], seconds: float
) -> Iterator[tuple[float, float]]:
    """Seconds of both, in turns; who begins alternates as well."""
    start, rounds = time.perf_counter(), 0
    while rounds < MIN_ROUNDS or time.perf_counter() - start < seconds:
        rounds += 1
        if rounds % 2:
            yield _timed(first), _timed(second)
        else:
            late = _timed(second)
            yield _timed(first), late


def _timed(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
