"""Numbers, scores and networks in few characters."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from search_spaces.architecture import Architecture, DecoderStack, EncoderStack
from search_spaces.genes import GeneNetwork
from search_spaces.genotypes import Network
from search_spaces.tasks import LOWER_IS_BETTER

NOTHING = "–"
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
# Scores whose numbers are not shares; the others are called what they are.
_NAMES = {"bleu": "BLEU", "perplexity": "perplexity"}


def compact(value: float | None) -> str:
    """Three digits and a unit prefix: 1234567 → ``1.23 M``."""
    if value is None:
        return NOTHING
    for size, prefix in _PREFIXES:
        # What rounds up to a thousand of the smaller unit is one of this unit.
        if abs(value) >= size * 0.9995:
            return f"{_three_digits(value / size)} {prefix}"
    return f"{value:.0f}"


def decimal(value: float | None, digits: int) -> str:
    """A fixed number of decimals, or a dash."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def milliseconds(value: float | None) -> str:
    """Three significant digits, or a dash."""
    return NOTHING if value is None else _three_digits(value)


def duration(seconds: float | None) -> str:
    """Seconds with one decimal, minutes and hours above: ``3 min 07 s``."""
    if seconds is None:
        return NOTHING
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def network(architecture: Network) -> str:
    """Depth, embedding size and attention kinds: ``L3 d48 · softmax/linear/omni``.

    A decoder layer that looks at an encoder reads ``(self+cross)``. A network of genes of anybody's
    is the line of all of them.
    """
    if isinstance(architecture, GeneNetwork):
        return architecture.line
    assert isinstance(architecture, Architecture)
    stacks = []
    if architecture.encoder:
        kinds = [layer.attention for layer in architecture.encoder.layers]
        stacks.append(_stack(architecture.encoder, kinds))
    if architecture.decoder:
        stacks.append(_stack(architecture.decoder, _decoder_kinds(architecture.decoder)))
    return " → ".join(stacks)


def _stack(stack: EncoderStack | DecoderStack, kinds: Iterable[str]) -> str:
    memory = stack.memory_length if isinstance(stack, DecoderStack) else 0
    size = f"L{len(stack.layers)} d{stack.embed_dim}" + (f" m{memory}" if memory else "")
    return f"{size} · {_joined(kinds)}"


def _decoder_kinds(decoder: DecoderStack) -> list[str]:
    kinds: list[str] = []
    for layer in decoder.layers:
        own, cross = layer.self_attention, layer.cross_attention
        kinds.append(own if cross is None else f"({own}+{cross})")
    return kinds


def _joined(kinds: Iterable[str]) -> str:
    runs = [(kind, len(list(group))) for kind, group in itertools.groupby(kinds)]
    return "/".join(kind if count == 1 else f"{kind}×{count}" for kind, count in runs)


def _three_digits(value: float) -> str:
    for digits, limit in ((2, 9.995), (1, 99.95)):
        if abs(value) < limit:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"


def headline(result: Mapping[str, Any]) -> str | None:
    """The score that the task is known by: it comes first."""
    for name, value in result.items():
        if name.startswith("test_") and isinstance(value, int | float):
            return name.removeprefix("test_")
    return None


def test_score(result: Mapping[str, Any]) -> str:
    """The score on the test split with its name: ``accuracy 0.9806``, ``BLEU 31.24``."""
    name = headline(result)
    return NOTHING if name is None else _written(name, result[f"test_{name}"])


def test_scores(results: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For scripts: ``{"id": …, "score": "accuracy", "value": 0.9806}`` of each network."""
    named = [(result, headline(result)) for result in results]
    return [
        {"id": result.get("id"), "score": name, "value": result[f"test_{name}"]}
        for result, name in named
        if name is not None
    ]


def main_score(scores: Sequence[Mapping[str, Any]], picked: str | None) -> str:
    """Of several test scores that of the picked network, else the best, and how many more."""
    if not scores:
        return NOTHING
    chosen = next((one for one in scores if one["id"] == picked), None) or max(scores, key=_worth)
    more = f" +{len(scores) - 1}" if len(scores) > 1 else ""
    return _written(chosen["score"], chosen["value"]) + more


def called(score: str) -> str:
    """What a score is called in tables."""
    return _NAMES.get(score, score)


def digits(score: str) -> int:
    """Decimals of a score: shares need more of them."""
    return 2 if score in _NAMES else 4


def _written(score: str, value: float) -> str:
    return f"{called(score)} {value:.{digits(score)}f}"


def _worth(one: Mapping[str, Any]) -> float:
    value = float(one["value"])
    return -value if one["score"] in LOWER_IS_BETTER else value
