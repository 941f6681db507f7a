"""How fast networks decode: beam search against torch's layers, and the time a token takes.

Beam search runs on a network of the multi30k space whose attention is as wide as its embeddings
(heads of 64 instead of 32), for torch's layers know no other, with random weights; all decoders
have the same ones and write the same texts. We keep the keys and values of a source once for all
beams of its sentence. Torch's layers keep them for each beam, which is how those layers are made
and what the mark is about, or, in a row for information, are taught the same trick.

Shapes: S sentences, M source positions, N target positions, R rows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from experiments.plain_decoding import PlainDecoding
from experiments.plain_translation import plain_translation
from experiments.speed_rows import Row
from experiments.step_ratio import largest_network
from latency.timer import time_calls
from search_spaces.architecture import AttentionKind
from search_spaces.loading import load_space
from search_spaces.space import SearchSpace
from supernet.beam_search import BeamSettings, beam_search
from supernet.sequence_models import build_translation_supernet

MIN_BEAM_RATIO = 1.0
MAX_GROWTH = 1.10

BOS, EOS = 1, 2
MAX_LENGTH = 64
SENTENCES = 32
POSITIONS = (64, 256, 1024)
ROWS = 4  # beams of one sentence
ROUNDS = 41
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
    supernet = build_translation_supernet(space).eval()
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
    timings = time_calls(steps, "cpu", repeats=ROUNDS, min_sample_s=SAMPLE_S)
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
    supernet = build_translation_supernet(space).eval()
    source_1M = torch.randint(EOS + 1, supernet.vocab_size, (1, 16))
    before = supernet.start(source_1M, largest_network(space, kind))
    text_RN = torch.randint(EOS + 1, supernet.vocab_size, (ROWS, max(positions)))
    states = [supernet.step(text_RN[:, :position], before)[1] for position in positions]
    return [partial(supernet.step, text_RN[:, -1:], state) for state in states]


def _growth_row(kind: str, medians: list[float], at_most: float | None) -> Row:
    name = f"Time per token, {kind}: largest / smallest"
    at = ", ".join(f"{ms:.2f} ms at {n}" for n, ms in zip(POSITIONS, medians, strict=True))
    return Row(name, max(medians) / min(medians), at_most=at_most, detail=at)
