"""What the speed study measures of networks: training steps, decoding, causal attention.

* A supernet's training step against the step of a fixed network of the same shape, in turns.
* Beam search against torch's layers, and the time a token takes. It runs on a network of the
  multi30k space whose attention is as wide as its embeddings (heads of 64 instead of 32), for
  torch's layers know no other, with random weights; all decoders have the same ones and write the
  same texts. We keep the keys and values of a source once for all beams of its sentence. Torch's
  layers keep them for each beam, or, in a row for information, are taught the same trick.
* Causal linear attention against fused softmax attention: time and memory, forward and backward.

Shapes: B batch, H heads, N (target) positions, D width of a head, S sentences, M source positions,
R rows, C classes or V target vocabulary.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from experiments.plain_networks import PlainDecoding, plain_translation, plain_twin
from latency.timer import time_calls
from search_spaces.architecture import Architecture, AttentionKind
from search_spaces.costs import flops
from search_spaces.loading import load_space
from search_spaces.settings import ImageInput, TokenInput
from search_spaces.space import SearchSpace
from search_spaces.variation import largest
from supernet.attention.base import AttentionKernel
from supernet.attention.linear import CosformerKernel
from supernet.attention.softmax import SoftmaxKernel
from supernet.beam_search import BeamSettings, beam_search
from supernet.building import build_supernet
from supernet.loss import IGNORED, smoothed_cross_entropy

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
    supernet: Any = build_supernet(space)
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
    supernet: Any = build_supernet(space)
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


def _timed(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


# -- one measured value -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """A measured value and its mark.

    Attributes:
        name: what was measured, in words.
        value: as measured.
        at_least: the smallest value that passes; None where there is no such mark.
        at_most: the largest value that passes; None where there is no such mark.
        detail: the numbers behind it, in words.
    """

    name: str
    value: float
    at_least: float | None = None
    at_most: float | None = None
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the value keeps its marks; a row without a mark is for information."""
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)

    @property
    def mark(self) -> str:
        """The mark in words; empty where there is none."""
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        return "" if self.at_most is None else f"at most {self.at_most:g}"

    def to_json(self) -> dict[str, Any]:
        """Name, value, mark, whether it passed, and the details."""
        return {
            "name": self.name,
            "value": self.value,
            "mark": self.mark,
            "passed": self.passed,
            "detail": self.detail,
        }


# -- beam search --------------------------------------------------------------------------------

MIN_BEAM_RATIO = 1.0
MAX_GROWTH = 1.10

BOS, EOS = 1, 2
MAX_LENGTH = 64
SENTENCES = 32
POSITIONS = (64, 256, 1024)
ROWS = 4  # beams of one sentence
DECODING_ROUNDS = 41
SAMPLE_S = 0.03


# -- beam search ------------------------------------------------------------------------------

Decoder = Callable[[], list[tuple[int, ...]]]


def beam_rows(seconds: float) -> list[Row]:
    """Tokens a second of beam search by our decoder over those by torch's layers.

    Args:
        seconds: how long the decoders take turns; at least seven rounds are made.
    """
    space = load_space("multi30k")
    wide = replace(space, model=replace(space.model, head_dim=64))
    decoders = beam_decoders(wide, SENTENCES)
    rates: dict[str, list[float]] = {name: [] for name in decoders}
    start, rounds = time.perf_counter(), 0
    while rounds < 7 or time.perf_counter() - start < seconds:
        names = list(decoders) if rounds % 2 else list(reversed(decoders))
        for name in names:
            rates[name].append(_tokens_per_second(decoders[name]))
        rounds += 1
    return [
        _beam_row("Beam search: ours / torch's layers, cached", rates, "rows", MIN_BEAM_RATIO),
        _beam_row("Beam search: the same, a source's cache shared by its beams", rates, "shared"),
    ]


def beam_decoders(space: SearchSpace, sentences: int) -> dict[str, Decoder]:
    """Beam search over the same random sources: ours, and torch's layers with the same weights.

    Args:
        space: a translation space; its largest network decodes.
        sentences: number of sources, 11 to 16 tokens each.
    """
    torch.manual_seed(0)
    architecture = largest_network(space, "softmax")
    supernet: Any = build_supernet(space).eval()
    plain = PlainDecoding(plain_translation(supernet, architecture))
    lengths = torch.randint(11, 17, (sentences,))
    real_SM = torch.arange(16) < lengths[:, None]
    source_SM = torch.randint(EOS + 1, supernet.vocab_size, real_SM.shape) * real_SM

    def decoder(start: Callable[[], Any], step: Callable[..., Any]) -> list[tuple[int, ...]]:
        with torch.inference_mode():
            found = beam_search(
                step, start(), lengths.tolist(), bos=BOS, eos=EOS, max_length=MAX_LENGTH
            )
        return [hypotheses[0].tokens for hypotheses in found]

    ours = partial(supernet.start, source_SM, architecture)
    separate = partial(plain.start, source_SM, copies=BeamSettings().beam_size)
    return {
        "ours": partial(decoder, ours, supernet.step),
        "rows": partial(decoder, separate, plain.step),
        "shared": partial(decoder, partial(plain.start, source_SM), plain.step),
    }


def _tokens_per_second(decoder: Decoder) -> float:
    start = time.perf_counter()
    texts = decoder()
    return sum(len(text) + 1 for text in texts) / (time.perf_counter() - start)


def _beam_row(
    name: str, rates: dict[str, list[float]], other: str, at_least: float | None = None
) -> Row:
    ratios = [a / b for a, b in zip(rates["ours"], rates[other], strict=True)][1:]  # 1 warms up
    ours, plain = statistics.median(rates["ours"][1:]), statistics.median(rates[other][1:])
    detail = f"{ours:.0f} and {plain:.0f} tokens/s, {len(ratios)} rounds, {SENTENCES} sentences"
    return Row(name, statistics.median(ratios), at_least=at_least, detail=detail)


# -- positions --------------------------------------------------------------------------------


def position_rows() -> list[Row]:
    """How much longer a token takes at the latest of `POSITIONS` than at the earliest."""
    space = load_space("multi30k")
    long = replace(space, model=replace(space.model, max_length=max(POSITIONS) + 1))
    kinds: tuple[AttentionKind, ...] = ("linear", "softmax")
    steps = [step for kind in kinds for step in decoding_steps(long, kind, POSITIONS)]
    timings = time_calls(steps, "cpu", repeats=DECODING_ROUNDS, min_sample_s=SAMPLE_S)
    medians = [timing.median_ms for timing in timings]
    return [
        _growth_row("linear", medians[: len(POSITIONS)], MAX_GROWTH),
        _growth_row("softmax", medians[len(POSITIONS) :], None),
    ]


@torch.inference_mode()
def decoding_steps(
    space: SearchSpace, kind: AttentionKind, positions: Sequence[int]
) -> list[Callable[[], object]]:
    """A call for each position that decodes one token of four beams there, in inference mode.

    Args:
        space: a translation space, long enough; its largest network decodes.
        kind: of attention everywhere.
        positions: tokens that were decoded before.
    """
    torch.manual_seed(0)
    supernet: Any = build_supernet(space).eval()
    source_1M = torch.randint(EOS + 1, supernet.vocab_size, (1, 16))
    before = supernet.start(source_1M, largest_network(space, kind))
    text_RN = torch.randint(EOS + 1, supernet.vocab_size, (ROWS, max(positions)))
    states = [supernet.step(text_RN[:, :position], before)[1] for position in positions]
    return [partial(supernet.step, text_RN[:, -1:], state) for state in states]


def _growth_row(kind: str, medians: list[float], at_most: float | None) -> Row:
    name = f"Time per token, {kind}: largest / smallest"
    at = ", ".join(f"{ms:.2f} ms at {n}" for n, ms in zip(POSITIONS, medians, strict=True))
    return Row(name, max(medians) / min(medians), at_most=at_most, detail=at)


# -- causal attention ---------------------------------------------------------------------------

MAX_SHARE = 0.25
MAX_EXPONENT = 1.05

WIDTH = 256  # of all heads together
HEAD_DIMS = (32, 64)
LENGTH = 4096
LENGTHS = (2048, 4096, 8192)
CAUSAL_ROUNDS = 11


def causal_rows() -> list[Row]:
    """Time at 4,096 positions for two widths of a head, and how memory grows with the length."""
    return [*(_time_row(head_dim) for head_dim in HEAD_DIMS), *map(_memory_row, HEAD_DIMS)]


def forward_and_backward(
    kernel: AttentionKernel, length: int, head_dim: int, width: int = WIDTH
) -> Callable[[], list[Tensor]]:
    """A call of causal attention over random inputs, which returns their gradients."""
    torch.manual_seed(0)
    shape = (1, width // head_dim, length, head_dim)
    inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]
    weights_BHND = torch.randn(shape)

    def call() -> list[Tensor]:
        out_BHND, _ = kernel.causal(*inputs)
        return list(torch.autograd.grad(out_BHND, inputs, weights_BHND))

    return call


def _kernels(head_dim: int, length: int) -> list[Callable[[], list[Tensor]]]:
    kernels = CosformerKernel(max(LENGTHS)), SoftmaxKernel(0, WIDTH)
    return [forward_and_backward(kernel, length, head_dim) for kernel in kernels]


def _time_row(head_dim: int) -> Row:
    calls, samples = _kernels(head_dim, LENGTH), []
    for number in range(CAUSAL_ROUNDS + 1):
        ordered = calls if number % 2 else calls[::-1]
        seconds = {call: _timed(call) for call in ordered}
        samples.append([seconds[call] for call in calls])
    times = np.array(samples[1:])  # the first round warms up
    share = float(np.median(times[:, 0] / times[:, 1]))
    linear, softmax = 1000 * np.median(times, axis=0)
    detail = f"{linear:.0f} and {softmax:.0f} ms at {LENGTH:,}, {CAUSAL_ROUNDS} rounds"
    name = f"Causal linear / softmax, heads of {head_dim}"
    return Row(name, share, at_most=MAX_SHARE, detail=detail)


def _memory_row(head_dim: int) -> Row:
    kernel = CosformerKernel(max(LENGTHS))
    peaks = [peak_bytes(forward_and_backward(kernel, n, head_dim)) for n in LENGTHS]
    exponent = float(np.polyfit(np.log(LENGTHS), np.log(peaks), 1)[0])
    at = ", ".join(
        f"{peak / 2**20:.0f} MiB at {n:,}" for n, peak in zip(LENGTHS, peaks, strict=True)
    )
    name = f"Memory's exponent of length, heads of {head_dim}"
    return Row(name, exponent, at_most=MAX_EXPONENT, detail=at)


def peak_bytes(call: Callable[[], object]) -> int:
    """Most bytes that a call holds at once, of those it allocates itself, workspaces included.

    Torch's profiler notes every allocation on the CPU; memory that was there before is not counted.
    """
    call()  # what is kept for good is allocated now
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        call()
    events = sorted(trace.events(), key=lambda event: event.time_range.end)
    held = np.cumsum([event.self_cpu_memory_usage for event in events])
    return int(held.max())
