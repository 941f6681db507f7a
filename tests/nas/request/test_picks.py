"""Picks: words, conditions and ids, what is refused in which words, and who takes them."""

from __future__ import annotations

from typing import Any

import pytest

from nas.objectives import QUALITIES
from nas.request.picks import (
    WORDS,
    Condition,
    Pick,
    check_scored,
    joined,
    read_conditions,
    read_pick,
    saving_of,
)
from search_spaces.errors import UnknownNameError, UsageError
from service.api.schemas import JobRequest, NetworkRequest


@pytest.mark.parametrize("text", ["params<=2e5", "params=200000", " params <= 2e5 ", "params≤2e5"])
def test_one_condition(text: str) -> None:
    assert read_conditions(text) == (Condition("params", 2e5),)


def test_several_and_scores_of_which_more_is_better() -> None:
    read = read_conditions("latency_ms<=12,valid_accuracy>=0.9")
    assert joined(read) == "latency_ms ≤ 12 and valid_accuracy ≥ 0.9"
    assert read_conditions("valid_accuracy=0.9") == read[1:]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("params<=", "NAME<=NUMBER"),
        ("<=5", "NAME<=NUMBER"),
        ("params<=many", "NAME<=NUMBER"),
        ("params<=nan", "NAME<=NUMBER"),
        ("params<=1,", "NAME<=NUMBER"),
        ("params>=1e5", "less is better: ask for params≤100000"),
        ("valid_accuracy<=0.5", "more is better"),
        ("params<=1,params<=2", "two conditions"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_conditions(text)


def test_what_is_not_measured_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'latency_ms'"):
        read_conditions("latency<=3")


def test_how_far_a_condition_is_missed() -> None:
    assert Condition("params", 100).missed_by({"params": 150}) == 0.5
    assert Condition("params", 100).missed_by({"params": 100}) == 0
    assert Condition("valid_accuracy", 0.8).missed_by({"valid_accuracy": 0.6}) == pytest.approx(
        0.25
    )
    assert Condition("valid_accuracy", 0.8).missed_by({"valid_accuracy": 0.9}) == 0


@pytest.mark.parametrize("text", [*WORDS, "0a1b", "0123456789ab"])
def test_words_and_ids_have_no_conditions(text: str) -> None:
    assert read_pick(text) == Pick(text)


@pytest.mark.parametrize("text", ["", "Knee", "abc", "0123456789abc", "front", "zzzz"])
def test_other_words_are_refused_and_all_ways_named(text: str) -> None:
    with pytest.raises(UsageError, match="takes sensible, best, knee, cheapest, a saving such as"):
        read_pick(text)


@pytest.mark.parametrize("text", [*WORDS, "latency_ms<=12,params<=2e5", "0a1b2c"])
def test_requests_take_every_form_that_the_command_takes(text: str) -> None:
    assert JobRequest(space="digits", pick=text).pick == NetworkRequest(pick=text).pick == text
    with pytest.raises(ValueError, match="takes sensible, best, knee"):
        NetworkRequest(pick=text[:2])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("best", "the lowest loss"),
        ("cheapest", "the lowest cost"),
        ("latency_ms<=12,params<=2e5", "asked for with latency_ms ≤ 12 and params ≤ 200000"),
        ("0a1b", "asked for by its id"),
    ],
)
def test_why_a_network_was_chosen(text: str, reason: str) -> None:
    assert read_pick(text).reason(QUALITIES["loss"], begun=False) == reason
    assert read_pick("best").reason(QUALITIES["bleu"], begun=False) == "the highest BLEU"


@pytest.mark.parametrize(
    ("text", "asked", "quality", "words"),
    [
        ("latency_ms<=3", {"flops"}, "loss", "does not measure: add latency_ms"),
        ("tokens_per_s>=3", {"latency_ms"}, "loss", "does not measure: add tokens_per_s"),
        ("peak_memory_mb<=3", {"params"}, "loss", "does not measure: add peak_memory_mb"),
        ("kv_cache_mb<=3", {"params"}, "loss", "does not measure: add kv_cache_mb"),
        ("valid_loss<=3", set(), "loss", "quality is the validation loss"),
    ],
)
def test_conditions_on_what_a_search_does_not_measure_are_refused(
    text: str, asked: set[str], quality: Any, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        read_pick(text).check_measured(asked, quality)
    every = {"latency_ms", "tokens_per_s", "peak_memory_mb", "kv_cache_mb"}
    read_pick(text).check_measured(every, "bleu")
    read_pick("quality<=1,params<=9").check_measured(set(), quality)


@pytest.mark.parametrize("name", ["params", "flops", "latency_ms"])
def test_costs_that_no_evaluator_tells_are_not_counted(name: str) -> None:
    pick = read_pick(f"quality<=1,{name}<=9")
    with pytest.raises(UsageError, match=f"does not measure: add {name}"):
        pick.check_measured({"ms"}, "loss", counted=False)
    pick.check_measured({"ms", name}, "loss", counted=False)


@pytest.mark.parametrize(
    ("text", "task", "quality", "words"),
    [
        ("valid_bleu>=30", "translation", "loss", "--quality bleu"),
        ("valid_bleu>=30", "classification", "loss", "of translation, and not of classification"),
        ("valid_kl<=1", "language_modelling", "loss", "--quality kl"),
        ("valid_similarity>=.9", "classification", "loss", "of embedding"),
        ("valid_accuracy>=.9", "embedding", "similarity", "and not of embedding"),
        ("params<=9,valid_recall_at_10>=.9", "translation", "bleu", "of embedding"),
    ],
)
def test_conditions_on_scores_that_no_network_has_are_refused(
    text: str, task: Any, quality: Any, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        check_scored(read_pick(text), task, quality)


@pytest.mark.parametrize(
    ("text", "task", "quality"),
    [
        ("valid_bleu>=30,params<=9", "translation", "bleu"),
        ("valid_accuracy>=.9", "classification", "loss"),
        ("valid_recall_at_10>=.9", "embedding", "similarity"),
        ("quality<=1", "embedding", "loss"),
    ],
)
def test_conditions_on_scores_that_networks_have(text: str, task: Any, quality: Any) -> None:
    check_scored(read_pick(text), task, quality)


def test_recall_is_no_condition_where_no_window_tells_what_is_recalled() -> None:
    pick = read_pick("valid_recall_nats<=2")
    check_scored(pick, "language_modelling")
    with pytest.raises(UsageError, match="has no window beyond which tokens count as recalled"):
        check_scored(pick, "language_modelling", windowed=False)


@pytest.mark.parametrize("text", ["1.5x", "2x", "1x", "10.25x"])
def test_a_saving_is_a_pick(text: str) -> None:
    assert saving_of(text) == float(text[:-1]) and read_pick(text).text == text
    because = [read_pick(text).reason(QUALITIES["loss"], begun=begun) for begun in (False, True)]
    assert because[0].endswith("times less than the one with the lowest loss, or else the cheapest")
    assert because[1].endswith("times less than the checkpoint, or else the cheapest")


@pytest.mark.parametrize("text", ["0.5x", "x", "1,5x", "1e3x", "-2x", "1.5 x"])
def test_what_is_no_saving(text: str) -> None:
    assert saving_of(text) is None
    with pytest.raises(UsageError, match=r"a saving such as 1\.5x"):
        read_pick(text)
