"""The one score on the test split that a task is known by, and how it is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nas.cli.wording import NOTHING

# Scores whose numbers are not shares; the others are called what they are.
_NAMES = {"bleu": "BLEU", "perplexity": "perplexity"}
_LOWER_IS_BETTER = ("loss", "perplexity")


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
    return -value if one["score"] in _LOWER_IS_BETTER else value
