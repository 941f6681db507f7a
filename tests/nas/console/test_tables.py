"""The tables of the command, for every task."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from nas.console.commands.picking import step_table
from nas.console.commands.profile import accuracy_table
from nas.console.formatting import test_score as tell
from nas.console.tables import front_table, retrained_table
from nas.objectives import OBJECTIVES, objective
from nas.search.front import Front, FrontEntry, build_front
from search_spaces.architecture import (
    Architecture,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)

ENCODER = EncoderStack(16, (EncoderLayer("linear", 1, 16),))
DECODER = DecoderStack(16, (DecoderLayer("softmax", 1, 16, "linear", 1, 1),))
BLEU_SCORES = {"test_bleu": 31.237, "test_loss": 1.5, "valid_bleu": 30.5, "valid_loss": 1.4}


def text_of(table: Any, width: int = 200) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def front(network: Architecture, by_bleu: bool = False) -> Front:
    measured = {"quality": 2.5, "valid_accuracy": 0.25, "params": 10, "flops": 20}
    measured |= {"valid_bleu": 97.5, "valid_loss": 1.125} if by_bleu else {}
    entry = FrontEntry(network.id, network, measured, {"quality": 2.75})
    goals = [objective("quality", "bleu" if by_bleu else "loss"), OBJECTIVES["flops"]]
    return build_front([entry], goals, (100.0, 100.0), {})


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ({"id": "x", "test_accuracy": 0.98061, "test_loss": 0.1}, "accuracy 0.9806"),
        (BLEU_SCORES, "BLEU 31.24"),
        ({"test_perplexity": 12.345, "test_loss": 2.5}, "perplexity 12.35"),
        ({"test_accuracy": None, "test_loss": 0.5}, "loss 0.5000"),
        ({"valid_accuracy": 0.5}, "–"),
        ({}, "–"),
    ],
)
def test_the_score_on_the_test_split_is_the_first(result: dict[str, Any], told: str) -> None:
    assert tell(result) == told


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ({"test_accuracy": 0.9, "valid_accuracy": 0.875}, ["valid accuracy", "0.8750"]),
        (BLEU_SCORES, ["valid BLEU", "30.50", "BLEU 31.24", "1.4000"]),
        (
            {"test_perplexity": 9.0, "valid_perplexity": 8.125},
            ["valid perplexity", "8.12", "perplexity 9.00"],
        ),
        ({}, ["valid accuracy", "–"]),
    ],
)
def test_networks_trained_from_scratch(scores: dict[str, Any], words: list[str]) -> None:
    shown = text_of(retrained_table([{"id": "0123456789ab", **scores, "epochs": 3}]))
    assert [word for word in words if word not in shown] == []


def test_a_result_without_scores_does_not_rename_the_others() -> None:
    shown = text_of(retrained_table([{"id": "a"}, {"id": "b", **BLEU_SCORES}]))
    assert "valid BLEU" in shown and "30.50" in shown


@pytest.mark.parametrize(
    ("network", "by_bleu", "heads", "missing"),
    [
        (Architecture(encoder=ENCODER), False, ["loss", "accuracy"], "tokens right"),
        (Architecture(ENCODER, DECODER), False, ["loss", "tokens right"], "accuracy"),
        (Architecture(ENCODER, DECODER), True, ["100−BLEU", "loss", "tokens right"], "accuracy"),
    ],
)
def test_the_front_calls_numbers_by_what_they_are(
    network: Architecture, by_bleu: bool, heads: list[str], missing: str
) -> None:
    shown = text_of(front_table(front(network, by_bleu), None))
    assert [head for head in heads if f" {head} " not in shown] == [] and missing not in shown
    assert "2.5000" in shown and "2.7500" in shown and "0.2500" in shown
    assert ("1.1250" in shown) == by_bleu


def accuracies(error: float) -> Any:
    """A profile's workload whose predictor and baselines all have this error."""
    score = {"mape": error, "kendall_tau": -0.123}
    names = ("predictor", "linear", "depth")
    report = SimpleNamespace(
        num_observations=2000,
        chosen="predictor",
        candidates={"predictor": SimpleNamespace(**score)},
        baselines={name: SimpleNamespace(**score) for name in names[1:]},
    )
    return SimpleNamespace(
        workload=SimpleNamespace(label="batch 1, source 4, float32, forward"),
        report={"sizes": [{"samples": 12, **dict.fromkeys(names, score)}]},
        latency=SimpleNamespace(report=report),
    )


@pytest.mark.parametrize(
    ("error", "told"), [(0.05, " 5.0%"), (9.99, " 999.0%"), (10.0, "> 999%"), (1e9, "> 999%")]
)
def test_a_profiles_errors_are_whole_in_a_narrow_terminal(error: float, told: str) -> None:
    shown = text_of(accuracy_table(accuracies(error)), width=80)
    assert "…" not in shown and shown.count(told) == 6
    assert shown.count("MAPE") == 3 and shown.count("-0.123") == 6


def test_steps_are_whole_in_a_narrow_terminal() -> None:
    measured = {"quality": 2.5, "latency_ms": 1234.5, "flops": 8e11}
    better = {"quality": 1.5, "latency_ms": 23456.5, "flops": 9e11}
    networks = (Architecture(encoder=ENCODER), Architecture(ENCODER, DECODER))
    entries = [
        FrontEntry(network.id, network, scores, {})
        for network, scores in zip(networks, (measured, better), strict=True)
    ]
    front = build_front(entries, [OBJECTIVES["quality"], OBJECTIVES["flops"]], (100.0, 1e13), {})
    shown = text_of(step_table(front, None), width=80)
    assert "…" not in shown and "+100 G" in shown and "cheapest" in shown
