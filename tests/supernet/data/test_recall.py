"""Associative recall: what a sequence promises, that splits are apart, and that answers count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from search_spaces.errors import SettingError, UsageError
from search_spaces.loading import parse_space
from search_spaces.recall_form import FILLER, FIRST_KEY, RecallSettings
from search_spaces.space import SearchSpace
from supernet.building import build_supernet
from supernet.data import recall
from supernet.data.recall import (
    generate,
    open_recall,
    open_recall_test,
)
from supernet.data.text_batches import stream_batches
from supernet.data.tokenizer import BOS, NUM_MARKS
from supernet.loss import IGNORED
from supernet.tasks.evaluation import evaluate, score
from supernet.tasks.opening import open_task
from supernet.training_settings import TrainingSettings
from tests.support.task_cases import networks_of

SMALL = RecallSettings(vocabulary=45, length=40, pairs=6, gap=5, train=60, valid=12, test=8)

SPACE = """
[space]
name = "tiny-recall"
task = "language_modelling"
[model]
max_length = 24
head_dim = 4
positions = "learned"
linear_kernel = "cosformer"
[model.input]
kind = "tokens"
vocab_size = 25
[decoder]
embed_dim = [8]
num_layers = [1, 2]
self_attention = ["softmax", "linear"]
self_num_heads = [2]
ffn_dim = [8]
[data]
dataset = "recall"
pairs = 4
gap = 3
train = 30
valid = 10
test = 6
recall_window = 4
"""


def space(**model_or_data: str) -> SearchSpace:
    """The tiny space with other values for some keys."""
    text = SPACE
    for name, value in model_or_data.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"{name} =")]
        text = text.replace(line, f"{name} = {value}")
    return parse_space(text, "space")


# -- a sequence ---------------------------------------------------------------------------------


def parts_of(row: list[int], scored: list[bool]) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """The pairs at the beginning, and the questions with the answers that are to be given."""
    listed = dict(zip(row[: 2 * SMALL.pairs : 2], row[1 : 2 * SMALL.pairs : 2], strict=True))
    places = [place for place, counts in enumerate(scored) if counts]
    return listed, [(row[place - 1], row[place]) for place in places]


def test_every_key_comes_back_once_with_its_value() -> None:
    drawn = generate(SMALL, 1)
    values = range(FIRST_KEY + SMALL.num_keys, SMALL.vocabulary)
    for row, scored in zip(drawn.tokens.tolist(), drawn.scored.tolist(), strict=True):
        listed, asked = parts_of(row, scored)
        assert len(listed) == SMALL.pairs and dict(asked) == listed and len(asked) == SMALL.pairs
        assert set(listed) <= set(range(FIRST_KEY, values.start))
        assert set(listed.values()) <= set(values)
        behind = row[2 * SMALL.pairs :]
        assert behind[: SMALL.gap] == [FILLER] * SMALL.gap
        assert behind.count(FILLER) == len(behind) - 2 * SMALL.pairs


def test_keys_come_back_in_other_orders_and_anywhere() -> None:
    drawn = generate(SMALL, 1)
    orders = set()
    for row, scored in zip(drawn.tokens.tolist(), drawn.scored.tolist(), strict=True):
        listed, asked = parts_of(row, scored)
        orders.add(tuple([*listed].index(key) for key, _ in asked))
    assert len(orders) > 60  # of 80, and of 720 that there may be
    first = 2 * SMALL.pairs + SMALL.gap + 1
    asked_at = drawn.scored.any(axis=0)
    assert asked_at[first:].all() and not asked_at[:first].any()


def test_the_shortest_form_has_no_room() -> None:
    tight = replace(SMALL, pairs=2, gap=0, length=8)
    drawn = generate(tight, 0)
    assert (drawn.tokens != FILLER).all()
    assert drawn.scored.tolist() == [[False] * 5 + [True, False, True]] * len(drawn.tokens)


def test_equal_settings_give_equal_sequences() -> None:
    first = generate(SMALL, 3).tokens.copy()
    generate.cache_clear()
    assert (generate(SMALL, 3).tokens == first).all()
    assert (generate(SMALL, 4).tokens != first).any()
    more = generate(replace(SMALL, test=20), 3).tokens
    assert (more[: len(first)] == first).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pairs": 0}, "pairs of the recall data is a whole number of at least 1 and.*0"),
        ({"gap": -1}, "gap .* at least 0"),
        ({"train": True}, "train .* found true"),
        ({"valid": 10**4000}, "valid .* at most 1,000,000,000,000,000; found 1000"),
        ({"pairs": 21}, "need as many keys.*set vocabulary to 47"),
        ({"length": 28}, "need sequences of 29 tokens; length is 28"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pairs": 1, "train": 9}, "there are only 10 sequences of 1 pairs .* than the 11 of all"),
        ({"pairs": 2, "valid": 99_999_999_999_999}, "there are only 90 sequences of 2 pairs"),
        ({"vocabulary": 65, "pairs": 5, "length": 50, "test": 10**9}, "only 17,100,720 sequences"),
        ({"vocabulary": 999, "pairs": 9, "length": 99, "test": 10**8}, "4 GB: ask for at most 2,9"),
        ({"vocabulary": 200_000}, "99,997 keys and 24 tokens need more memory .* 65,536 togeth"),
        ({"length": 999_999}, "need more memory to be drawn than 4 GB"),
    ],
)
def test_more_than_there_can_be_is_refused_by_arithmetic(
    changes: dict[str, int], words: str
) -> None:
    form = {"vocabulary": 25, "length": 24, "pairs": 1, "train": 1, "valid": 1, "test": 1}
    assert RecallSettings(**form).sequences == 3
    with pytest.raises(SettingError, match=words) as caught:
        RecallSettings(**form | changes)
    assert caught.value.keys[0] == list(changes)[-1]


def test_as_many_as_there_are_are_not_too_many() -> None:
    form = RecallSettings(25, 24, pairs=2, train=88, valid=1, test=1)
    assert form.sequences == 90  # of 10 keys two after each other; of 10 values there are 100
    with pytest.raises(SettingError, match="only 90"):
        replace(form, test=2)


def test_tokens_of_a_vocabulary_begin_behind_the_marks() -> None:
    assert FILLER == NUM_MARKS


def test_what_cannot_be_drawn_apart_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # There are 10 keys, and 10 values: the last few of 10 sequences are never drawn together.
    monkeypatch.setattr(recall, "MAX_DRAWS_WITHOUT_GAIN", 1)
    monkeypatch.setattr(recall, "SEQUENCES_PER_DRAW", 1)
    with pytest.raises(UsageError, match="fewer than 10 sequences"):
        generate(RecallSettings(25, 8, pairs=1, train=8, valid=1, test=1), 0)
    with pytest.raises(UsageError, match="seed"):
        generate(SMALL, -1)


# -- splits -------------------------------------------------------------------------------------


def test_no_split_has_the_keys_or_values_of_another_in_order() -> None:
    data, test = open_recall(SMALL, 0), open_recall_test(SMALL, 0)
    sizes = [len(split.rows) for split in (data.train, data.valid, test)]
    assert sizes == [SMALL.train, SMALL.valid, SMALL.test]
    keys, values = set(), set()
    for split in (data.train, data.valid, test):
        for number in range(len(split.rows)):
            row = split.rows[number].tolist()
            keys.add(tuple(row[: 2 * SMALL.pairs : 2]))
            values.add(tuple(row[1 : 2 * SMALL.pairs : 2]))
    assert len(keys) == len(values) == sum(sizes)


def test_the_digest_is_of_what_a_search_sees() -> None:
    digest = open_recall(SMALL, 0).digest
    assert open_recall(replace(SMALL, test=9), 0).digest == digest
    for other in ({"gap": 4}, {"valid": 11}, {"vocabulary": 46}):
        assert open_recall(replace(SMALL, **other), 0).digest != digest
    assert open_recall(SMALL, 1).digest != digest


def test_rows_are_text() -> None:
    data = open_recall(SMALL, 0)
    assert data.source_tokenizer is not None
    rows = [data.valid.rows[number].tolist() for number in range(len(data.valid.rows))]
    lines = data.source_tokenizer.decode(rows)
    assert data.source_tokenizer.encode(lines) == rows
    assert data.valid.num_words == sum(len(line.split()) for line in lines)
    assert data.valid.num_characters == sum(map(len, lines))
    assert data.source_tokenizer.vocab_size == SMALL.vocabulary


# -- batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_batch_holds_whole_sequences_of_which_answers_count(shuffle: bool) -> None:
    split = open_recall(SMALL, 0).train
    found = []
    for batch in stream_batches(split, 7 * SMALL.length, 3, 5, 2, shuffle=shuffle):
        assert batch.inputs.shape[1] == SMALL.length and len(batch) <= 7
        assert (batch.inputs[:, 0] == BOS).all()
        assert batch.num_tokens == SMALL.pairs * len(batch)
        assert (batch.mask.sum(dim=1) == SMALL.pairs).all()
        assert (batch.targets[~batch.mask] == 0).all()
        # An answer is read at the next place, and stands behind its key.
        inner = batch.mask[:, :-1]
        assert batch.inputs[:, 1:][inner].equal(batch.targets[:, :-1][inner])
        assert (batch.inputs[batch.mask] < FIRST_KEY + SMALL.num_keys).all()
        found += [tuple(row) for row in batch.inputs[:, 1:].tolist()]
    wanted = [tuple(split.rows[number][:-1].tolist()) for number in range(len(split.rows))]
    assert sorted(found) == sorted(wanted)
    assert (found == wanted) == (not shuffle)


def test_sequences_longer_than_a_batch_are_refused() -> None:
    with pytest.raises(UsageError, match="segments of 40 tokens do not fit into batches of at mo"):
        stream_batches(open_recall(SMALL, 0).train, 39, 3)


# -- the task -----------------------------------------------------------------------------------


def test_answers_alone_are_scored() -> None:
    tiny = space()
    task: Any = open_task(tiny, "recall", None, 0)
    model, (network,) = build_supernet(tiny).eval(), networks_of(tiny, 1)
    logits, labels = [], []
    for number in range(len(task.valid.rows)):
        row = torch.from_numpy(task.valid.rows[number].astype(np.int64))
        inputs = torch.cat([torch.tensor([BOS]), row[:-1]])
        with torch.no_grad():
            logits.append(model(inputs[None], network)[0])
        asked = torch.tensor(task.valid.scored[number * 24 : (number + 1) * 24].tolist())
        labels.append(row.masked_fill(~asked, IGNORED))
    wanted = torch.nn.functional.cross_entropy(torch.cat(logits), torch.cat(labels))
    right = (torch.cat(logits).argmax(dim=-1) == torch.cat(labels)).sum()
    found = evaluate(task, model, network, task.valid)
    assert found.count == 4 * 10
    assert found.loss == pytest.approx(float(wanted), rel=1e-5)
    assert found.accuracy == pytest.approx(int(right) / 40)
    # All answers but those that come right behind the list lie beyond a window of 4.
    assert found.recall_nats is not None and found.recall_nats == pytest.approx(found.loss, abs=0.5)


def test_the_task_is_known_by_the_accuracy_of_answers() -> None:
    tiny = space()
    task: Any = open_task(tiny, "recall", None, 0)
    model, (network,) = build_supernet(tiny), networks_of(tiny, 1)
    found = score(task, model, network, task.open_test())
    assert found.headline == "accuracy" and found.count == 4 * 6
    assert set(found.values) == {"loss", "accuracy", "recall_nats"}


def test_some_examples_keep_what_counts() -> None:
    task: Any = open_task(space(), "recall", None, 0)
    some: Any = task.with_valid(3)
    assert len(some.valid.rows) == 3 and some.valid.alone
    assert some.valid.scored.sum() == 3 * 4 and len(some.valid.recalled) == 3 * 24
    assert some.has_recall
    whole, total = task.valid, len(task.valid.rows)
    assert total > 3
    for row, before in enumerate(place * total // 3 for place in range(3)):
        assert some.valid.rows[row].tolist() == whole.rows[before].tolist()
        place = slice(24 * row, 24 * row + 24), slice(24 * before, 24 * before + 24)
        assert some.valid.scored[place[0]].tolist() == whole.scored[place[1]].tolist()


def test_training_sees_whole_sequences_whatever_the_segment() -> None:
    task: Any = open_task(space(), "recall", None, 0)
    settings = TrainingSettings(max_tokens=24 * 8, segment_length=512)
    task.check(settings)
    assert task.num_batches(settings) == 4
    (first, *_) = task.batches(settings, seed=0, epoch=0, device="cpu")
    assert first.inputs.shape == (8, 24) and first.recalled is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"train": "30\nlenght = 4"},
            r"data.lenght: found 'lenght' \(did you mean 'length'",
        ),
        ({"train": "30\nlength = 25"}, "set max_length of \\[model\\] to 25"),
        ({"pairs": "7"}, "need sequences of 31 tokens; length is 24"),
        ({"recall_window": "-1"}, "recall_window: found -1, allowed is a whole number of tokens"),
    ],
)
def test_wrong_tables_are_refused(changes: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        open_task(space(**changes), "recall", None, 0)


def test_a_vocabulary_that_networks_lack_is_refused() -> None:
    with pytest.raises(UsageError, match="set vocab_size of .model.input. to 30 or more"):
        open_task(space(train="30\nvocabulary = 30"), "recall", None, 0)


def test_networks_with_a_memory_are_refused() -> None:
    text = SPACE.replace('positions = "learned"', 'positions = "none"\nrelative_positions = 8')
    text = text.replace(', "linear"]', "]").replace("ffn_dim", "memory_length = [0, 8]\nffn_dim")
    with pytest.raises(UsageError, match=r"stand alone.*remove memory_length"):
        open_task(parse_space(text, "space"), "recall", None, 0)
