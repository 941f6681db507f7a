"""Which tokens only recall can tell: worked by hand, a slow twin, and the loss on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from search_spaces.errors import SpaceFileError, UsageError
from search_spaces.loading import parse_space
from search_spaces.recall import recall_window
from supernet.building import build_supernet
from supernet.data.prepared import StreamSplit
from supernet.data.repeated_bigrams import repeats_beyond, with_recalled
from supernet.data.text_batches import stream_batches
from supernet.data.text_files import TokenRows
from supernet.tasks.evaluation import evaluate, score
from supernet.tasks.opening import open_task
from tests.support.task_cases import networks_of
from tests.support.trained_cases import LANGUAGE


def stream(tokens: list[int], **more: Any) -> StreamSplit:
    """One line of these tokens."""
    return StreamSplit(TokenRows.of([tokens]), len(tokens), len(tokens), **more)


def marked(tokens: list[int], length: int, window: int) -> list[int]:
    """Places of the recalled tokens."""
    found = with_recalled(stream(tokens), length, window).recalled
    return [] if found is None else np.flatnonzero(found).tolist()


def slow(before: list[int], tokens: list[int], segments: list[int], window: int) -> list[bool]:
    """Looks back from every token, one by one."""
    found = []
    for place, pair in enumerate(zip(before, tokens, strict=True)):
        last = next(
            (
                earlier
                for earlier in range(place - 1, -1, -1)
                if segments[earlier] == segments[place]
                and (before[earlier], tokens[earlier]) == pair
            ),
            None,
        )
        found.append(last is not None and place - last > window)
    return found


def test_worked_by_hand() -> None:
    text = [5, 6, 7, 5, 6, 8, 5, 6]  # 5 6 comes at 1, 4 and 7, each 3 behind the last
    assert marked(text, 8, 0) == [4, 7]
    assert marked(text, 8, 2) == [4, 7]
    assert marked(text, 8, 3) == []
    assert marked([5, 6, 7, 7, 7, 5, 6], 7, 4) == [6]


def test_what_the_window_shows_is_not_recall_even_if_it_was_seen_before_too() -> None:
    assert marked([5, 6, 9, 9, 9, 9, 5, 6, 5, 6], 10, 2) == [7]  # at 9 the last is 2 behind


def test_a_segment_does_not_see_the_one_before() -> None:
    text = [5, 6, 7, 8, 5, 6, 7, 8]
    assert marked(text, 8, 1) == [5, 6, 7]
    assert marked(text, 4, 1) == []
    # The first token of a segment is read behind the last one of the segment before.
    assert marked([9, 5, 6, 9, 5, 6], 3, 0) == []
    assert marked([9, 9, 9, 9], 2, 0) == [3]


def test_lines_that_stand_alone_are_segments_with_a_begin_mark() -> None:
    rows = TokenRows.of([[5, 6, 5, 6], [6, 5, 6]])
    split = StreamSplit(rows, 7, 7, alone=True)
    found = with_recalled(split, 100, 1).recalled
    assert found is not None and found.tolist() == [False] * 3 + [True] + [False] * 3


def test_tokens_that_are_not_to_be_predicted_are_not_recalled() -> None:
    asked = np.array([True, True, True, False, True, True])
    found = with_recalled(stream([5, 6, 5, 6, 5, 6], scored=asked), 6, 1).recalled
    assert found is not None and np.flatnonzero(found).tolist() == [4, 5]


@pytest.mark.parametrize("text", [[], [5], [5, 5], [5, 6, 7]])
def test_short_and_new_texts_have_none(text: list[int]) -> None:
    assert with_recalled(stream(text), 4, 1).recalled is None


@pytest.mark.parametrize("seed", range(12))
def test_as_the_slow_twin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, window = int(rng.integers(1, 90)), int(rng.integers(0, 9))
    before, tokens = rng.integers(0, int(rng.integers(1, 6)) + 1, size=(2, count))
    segments = np.sort(rng.integers(0, 4, size=count))
    found = repeats_beyond(before, tokens, segments, window)
    assert found.tolist() == slow(*(x.tolist() for x in (before, tokens, segments)), window)


def test_batches_carry_the_marks_of_their_tokens() -> None:
    rng = np.random.default_rng(0)
    split = with_recalled(stream(rng.integers(4, 8, size=75).tolist()), 16, 3)
    assert split.recalled is not None
    batches = list(stream_batches(split, 64, 16, shuffle=False))
    seen = torch.cat([b.recalled[b.mask] for b in batches if b.recalled is not None])
    assert seen.tolist() == split.recalled.tolist()
    assert not batches[-1].recalled[~batches[-1].mask].any()  # type: ignore[index]
    half = batches[0].part(slice(2)).to("cpu")
    assert half.recalled is not None and half.recalled.equal(batches[0].recalled[:2])  # type: ignore[index]
    assert next(stream_batches(replace(split, recalled=None), 64, 16)).recalled is None


# -- the score ----------------------------------------------------------------------------------


WINDOW = LANGUAGE + "recall_window = 6\n"


def test_the_loss_on_recalled_tokens_is_the_mean_over_them() -> None:
    space = parse_space(WINDOW, "space")
    task: Any = open_task(space, "synthetic", None, 0).with_valid(20)
    model, (network,) = build_supernet(space).eval(), networks_of(space, 1)
    losses, marks = [], []
    with torch.no_grad():
        for one in task.evaluation(model, network, task.valid, "cpu"):
            assert one.recalled is not None
            losses.append(cross_entropy(one.logits, one.labels, reduction="none"))
            marks.append(one.recalled)
    chosen = torch.cat(losses)[torch.cat(marks)]
    found = evaluate(task, model, network, task.valid)
    assert 10 < len(chosen) < found.count / 2
    assert found.recall_nats == pytest.approx(float(chosen.mean()), rel=1e-5)
    values = score(task, model, network, task.valid).values
    assert values["recall_nats"] == found.recall_nats and values["loss"] == found.loss


def test_without_a_window_nothing_is_said_of_recall() -> None:
    space = parse_space(LANGUAGE, "space")
    task: Any = open_task(space, "synthetic", None, 0).with_valid(5)
    found = evaluate(task, build_supernet(space), networks_of(space, 1)[0], task.valid)
    assert found.recall_nats is None and not task.has_recall
    assert (
        "recall_nats"
        not in score(task, build_supernet(space), networks_of(space, 1)[0], task.valid).values
    )


@pytest.mark.parametrize("given", ["-1", "true", "2.5", '"8"'])
def test_a_window_is_a_whole_number(given: str) -> None:
    text = WINDOW.replace("window = 6", f"window = {given}")
    message = "data.recall_window: found .*, allowed is a whole number of tokens"
    with pytest.raises(SpaceFileError, match=rf"mine.toml, line \d+, {message}"):
        parse_space(text, "mine.toml")
    with pytest.raises(UsageError, match="of the space tiny-language: found .* is a whole number"):
        recall_window(parse_space(text, "kept", kept=True))


def test_the_setting_is_the_window() -> None:
    assert recall_window(parse_space(WINDOW, "space")) == 6
    assert recall_window(parse_space(LANGUAGE, "space")) is None


def test_otherwise_it_is_the_largest_window_of_a_layer() -> None:
    kinds = LANGUAGE.replace('["softmax", "linear"]', '["softmax", "window:12", "window:9"]')
    assert recall_window(parse_space(kinds, "space")) == 12
    assert recall_window(parse_space(kinds + "recall_window = 3\n", "space")) == 3
