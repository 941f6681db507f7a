"""Losses of language models by how far tokens are from what tells them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from search_spaces.loading import parse_space
from supernet.building import build_supernet
from supernet.data.repeated_bigrams import distances
from supernet.loss import IGNORED
from supernet.tasks import language_modelling
from supernet.tasks.evaluation import by_distance, evaluate
from supernet.tasks.opening import open_task
from tests.support.task_cases import SEGMENT, SPACES, networks_of, supernet_of, task_of, with_memory
from tests.support.trained_cases import LANGUAGE

SPACE = SPACES["language_modelling"]


def slow_distances(split: Any, length: int) -> tuple[list[int], list[int]]:
    """Token by token."""
    tokens = split.rows.tokens.tolist()
    apart, places = [], []
    for at, token in enumerate(tokens):
        begin = at - at % length
        places.append(at - begin + 1)
        pairs = {}
        for number in range(begin, at):
            pairs[tokens[number - 1] if number else 1, tokens[number]] = number
        last = pairs.get((tokens[at - 1] if at else 1, token))
        apart.append(0 if last is None else at - last)
    return apart, places


def test_distances_are_those_to_the_same_pair() -> None:
    split = task_of("language_modelling").valid
    apart, places = distances(split, SEGMENT)
    right = slow_distances(split, SEGMENT)
    assert (apart.tolist(), places.tolist()) == right
    assert apart.max() > 1 and (apart == 0).sum() > 10 and places.max() == SEGMENT


def test_lines_that_stand_alone_are_segments() -> None:
    split = task_of("language_modelling").with_valid(4).valid
    apart, places = distances(replace(split, alone=True), SEGMENT)
    lengths = split.rows.lengths.tolist()
    assert places.tolist() == [place + 1 for length in lengths for place in range(length)]
    assert apart.max() < max(lengths)


@pytest.mark.parametrize("batch", [32, 4096])
def test_each_stretch_has_the_mean_over_its_tokens(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_modelling, "EVALUATION_TOKENS", batch)
    monkeypatch.setattr(language_modelling, "DISTANCES", (4, 9))
    task: Any = task_of("language_modelling").with_valid(7)
    model, (network,) = supernet_of(SPACE), networks_of(SPACE, 1)
    found = by_distance(task, model, network, task.valid)
    losses: list[float] = []
    with torch.inference_mode():
        model.eval()
        for one in task.evaluation(model, network, task.valid, "cpu"):
            each = F.cross_entropy(one.logits, one.labels, reduction="none")
            losses += each[one.labels != IGNORED].tolist()
    for name, told in zip(("repeats", "positions"), distances(task.valid, SEGMENT), strict=True):
        ends = [(0, 0), (1, 4), (5, 9), (10, None)]
        right = []
        for first, last in ends:
            mine = (told >= first) & (told <= (10**9 if last is None else last))
            if mine.any():
                mean = float(np.array(losses)[mine].mean())
                right.append((first, last, int(mine.sum()), pytest.approx(mean, rel=1e-5)))
        assert [tuple(one.values()) for one in found[name]] == right
        total = sum(one["tokens"] * one["nats"] for one in found[name])  # type: ignore[operator]
        whole = evaluate(task, model, network, task.valid)
        assert total / whole.count == pytest.approx(whole.loss, rel=1e-5)
    assert len(found["repeats"]) > 1 and len(found["positions"]) == 3


def test_other_networks_have_none() -> None:
    task = task_of("translation")
    model, (network,) = supernet_of(SPACES["translation"]), networks_of(SPACES["translation"], 1)
    assert by_distance(task, model, network, task.valid) == {}
    space = parse_space(with_memory(LANGUAGE), "space")
    remembering = next(
        one for one in networks_of(space, 9) if one.decoder and one.decoder.memory_length
    )
    text = open_task(space, "synthetic", None, 0)
    assert by_distance(text, build_supernet(space), remembering, text.valid) == {}
