"""Token files, tokenizers and batches by tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from search_spaces.errors import DataError, UsageError
from supernet.data.prepared import PairSplit, StreamSplit
from supernet.data.text_batches import (
    PairBatch,
    collate_pairs,
    padding_share,
    pair_batches,
    plan_pair_batches,
    recurrent_batches,
    source_batch,
    stream_batches,
)
from supernet.data.text_files import TokenRows, read_rows, token_dtype, writing_rows
from supernet.data.tokenizer import (
    BOS,
    EOS,
    MARKS,
    UNKNOWN,
    SentencePieceTokenizer,
    WordTokenizer,
    learn,
)

LINES = [f"the {colour} {animal}  runs" for colour in ("red", "old") for animal in ("fox", "dog")]


def pairs(count: int = 3000, seed: int = 0) -> PairSplit:
    """Pairs whose lengths belong together; every token is the number of its pair + 4."""
    rng = np.random.default_rng(seed)
    source = rng.integers(1, 30, count)
    target = np.maximum(1, source + rng.integers(-4, 5, count))
    rows = [[[row + 4] * int(n) for row, n in enumerate(side)] for side in (source, target)]
    return PairSplit(TokenRows.of(rows[0]), TokenRows.of(rows[1]))


def stream(count: int) -> StreamSplit:
    return StreamSplit(TokenRows.of([list(range(10, 10 + count))]), 0, 0)


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, "uint16"), (65_537, "int32")])
def test_rows_come_back_from_a_file(tmp_path: Path, vocab_size: int, dtype: str) -> None:
    chosen = token_dtype(vocab_size)
    assert chosen == dtype
    with writing_rows(tmp_path, "x", chosen) as writer:
        writer.append([[5, vocab_size - 1], []])
        writer.append([])
        writer.append([[7, 8, 9]])
    rows = read_rows(tmp_path, "x", chosen, vocab_size)
    assert [row.tolist() for row in rows] == [[5, vocab_size - 1], [], [7, 8, 9]]
    assert isinstance(rows.tokens, np.memmap) and not rows.tokens.flags.writeable
    assert (writer.rows, writer.total, writer.longest) == (3, 5, 3)
    assert rows.padded().tolist() == [[5, vocab_size - 1, 0], [0, 0, 0], [7, 8, 9]]


@pytest.mark.parametrize("damage", ["offsets", "vocabulary", "order"])
def test_token_files_that_contradict_are_refused(tmp_path: Path, damage: str) -> None:
    with writing_rows(tmp_path, "x", "uint16") as writer:
        writer.append([[5, 6], [7]])
    offsets = {"offsets": [0, 2, 4], "order": [0, 4, 3]}.get(damage, [0, 2, 3])
    (tmp_path / "x.offsets.bin").write_bytes(np.asarray(offsets, "<i8").tobytes())
    with pytest.raises(DataError, match="prepare the data anew"):
        read_rows(tmp_path, "x", "uint16", 7 if damage == "vocabulary" else 8)


# -- tokenizers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sentencepiece_gives_the_text_back(kind: str) -> None:
    model = learn(LINES * 20, 20, kind, "lines")  # type: ignore[arg-type]
    tokenizer = SentencePieceTokenizer(model)
    rows = tokenizer.encode(["the old fox runs", ""])
    assert tokenizer.vocab_size == 20 and rows[1] == []
    assert all(3 < token < 20 for token in rows[0])
    marked = [[BOS, *rows[0], EOS, 0, 0]]
    assert tokenizer.decode(marked) == ["the old fox runs"] and tokenizer.decode([]) == []
    assert UNKNOWN in tokenizer.encode(["€"])[0]
    assert learn(LINES * 20, 20, kind, "lines") == model  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "words"), [(5000, "larger than small.en can give.*or less"), (6, "too small.*or more")]
)
def test_impossible_vocabularies_name_a_possible_one(size: int, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        learn(LINES, size, "bpe", "small.en")
    possible = int(str(caught.value).split("--vocab-size ")[1].split()[0])
    assert SentencePieceTokenizer(learn(LINES, possible, "bpe", "")).vocab_size == possible


def test_blank_text_and_damaged_models_are_refused() -> None:
    with pytest.raises(DataError, match="every line of it is blank"):
        learn(["", " "], 100, "bpe", "small.en")
    with pytest.raises(DataError, match="no sentencepiece model"):
        SentencePieceTokenizer(b"no model")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DataError("train.en:2: not UTF-8")])
def test_what_stops_the_lines_is_not_disguised(error: BaseException) -> None:
    def lines() -> Iterator[str]:
        yield "the dog"
        raise error

    with pytest.raises(type(error)) as caught:
        learn(lines(), 20, "bpe", "train.en")
    assert caught.value is error


def test_words_are_numbered_behind_the_marks() -> None:
    tokenizer = WordTokenizer(["a", "b"])
    assert tokenizer.encode(["b a  x", ""]) == [[5, 4, UNKNOWN], []]
    assert tokenizer.decode([[BOS, 5, 4, EOS, 0]]) == ["b a"]
    assert tokenizer.vocab_size == len(MARKS) + 2


# -- pairs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_pair_comes_once_within_the_limit(shuffle: bool) -> None:
    split, seen = pairs(), []
    for batch in pair_batches(split, 500, shuffle=shuffle):
        seen += batch.rows.tolist()
        assert len(batch) * max(batch.source.shape[1], batch.inputs.shape[1]) <= 500
        assert torch.equal(batch.source[:, 0], batch.rows + 4)
        assert batch.num_tokens == int(batch.target_mask.sum()) == int((batch.targets > 0).sum())
    assert sorted(seen) == list(range(len(split)))


def test_marks_and_padding_stand_where_they_should() -> None:
    split = PairSplit(TokenRows.of([[5, 6], [7], []]), TokenRows.of([[8], [9, 10], []]))
    batch = collate_pairs(split, np.array([0, 1, 2]))
    assert batch.source.tolist() == [[5, 6, EOS], [7, EOS, 0], [EOS, 0, 0]]
    assert batch.inputs.tolist() == [[BOS, 8, 0], [BOS, 9, 10], [BOS, 0, 0]]
    assert batch.targets.tolist() == [[8, EOS, 0], [9, 10, EOS], [EOS, 0, 0]]
    assert batch.source_mask.tolist() == (batch.source != 0).tolist()
    assert batch.target_mask.tolist() == (batch.targets != 0).tolist()
    source, mask = source_batch([[5, 6], [7], []])
    assert torch.equal(source, batch.source) and torch.equal(mask, batch.source_mask)


def test_order_comes_from_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        return [rows.tolist() for rows in plan_pair_batches(pairs(), 500, seed, epoch)]

    np.random.seed(1)
    first = order(3, 7)
    assert order(3, 7) == first
    assert all(other != first for other in (order(3, 8), order(4, 7), order(7, 3)))
    # Epochs differ in who shares a batch, not only in which batch comes first.
    assert set(map(frozenset, order(3, 8))) != set(map(frozenset, first))


def test_padding_is_under_a_tenth_and_shuffled_rows_are_far_above() -> None:
    split = pairs()
    for shuffle in (True, False):
        planned = plan_pair_batches(split, 1000, shuffle=shuffle)
        widths = [(b.source.numel() + b.inputs.numel()) for b in pair_batches(split, 1000)]
        assert padding_share(split, planned) < 0.1
    used = len(split.source.tokens) + len(split.target.tokens) + 2 * len(split)
    shuffled = plan_pair_batches(split, 1000)
    assert padding_share(split, shuffled) == pytest.approx(1 - used / sum(widths))
    assert padding_share(split, np.array_split(np.arange(len(split)), len(shuffled))) > 0.3


def test_lengths_of_batches_are_shuffled() -> None:
    widths = [batch.source.shape[1] for batch in pair_batches(pairs(), 300)]
    assert widths != sorted(widths) and np.corrcoef(widths[1:], widths[:-1])[0, 1] < 0.3
    plain = [
        max(b.source.shape[1], b.inputs.shape[1]) for b in pair_batches(pairs(), 300, 0, 0, False)
    ]
    assert plain == sorted(plain, reverse=True)


def test_small_evaluation_splits_take_smaller_batches() -> None:
    split = pairs(200)
    assert padding_share(split, plan_pair_batches(split, 4000, shuffle=False)) < 0.1
    assert padding_share(split, plan_pair_batches(split, 4000)) > 0.1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((20,), "longest pair, of 3"), ((500, -1), "seed must be"), ((500, 0, -1), "epoch must be")],
)
def test_wrong_numbers_are_refused_at_the_call(arguments: tuple[int, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        pair_batches(pairs(), *arguments)


def test_an_empty_split_has_no_batches() -> None:
    empty = PairSplit(TokenRows.of([]), TokenRows.of([]))
    assert list(pair_batches(empty, 100)) == [] == list(pair_batches(empty, 100, shuffle=False))


# -- streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("count", [1, 6, 7, 8, 100])
def test_every_token_of_a_stream_is_predicted_once(shuffle: bool, count: int) -> None:
    seen = []
    for batch in stream_batches(stream(count), 21, 7, seed=1, shuffle=shuffle):
        assert batch.inputs.shape[0] <= 3 and batch.inputs.shape[1] <= 7 and not batch.continues
        inputs, targets = batch.inputs[batch.mask], batch.targets[batch.mask]
        assert torch.equal(torch.where(targets == 10, BOS, targets - 1), inputs)
        assert not batch.inputs[~batch.mask].any() and not batch.targets[~batch.mask].any()
        assert batch.num_tokens == len(targets)
        seen += targets.tolist()
    assert sorted(seen) == list(range(10, 10 + count))
    assert shuffle or seen == sorted(seen)


def test_passes_over_a_stream_are_cut_at_different_places() -> None:
    def starts(epoch: int) -> set[int]:
        batches = stream_batches(stream(100), 7, 7, seed=1, epoch=epoch)
        return {int(batch.targets[0, 0]) for batch in batches}

    assert starts(0) == starts(0) and len({frozenset(starts(epoch)) for epoch in range(6)}) > 2


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("count", "context"), [(1, 3), (40, 0), (40, 1), (40, 9), (100, 30)])
def test_contexts_are_the_inputs_before_a_segment(count: int, context: int, shuffle: bool) -> None:
    read = [0] * context + [BOS, *range(10, 10 + count)]
    for batch in stream_batches(stream(count), 21, 7, seed=1, shuffle=shuffle, context=context):
        assert batch.context is not None and batch.context.dtype == torch.int64
        for row, inputs in zip(batch.context.tolist(), batch.inputs.tolist(), strict=True):
            place = read.index(inputs[0], context)
            assert row == read[place - context : place] and len(row) == context


def test_contexts_come_when_they_are_asked_for() -> None:
    plain = list(stream_batches(stream(40), 21, 7, seed=1))
    assert all(
        batch.context is None for batch in (*plain, *recurrent_batches(stream(40), 21, 7, 0))
    )
    both = zip(plain, stream_batches(stream(40), 21, 7, seed=1, context=4), strict=True)
    assert all(torch.equal(a.inputs, b.inputs) for a, b in both)
    moved = plain[0].to("meta")
    assert moved.context is None and moved.mask.is_meta
    with_context = next(stream_batches(stream(40), 21, 7, device="meta", context=4)).context
    assert with_context is not None and with_context.is_meta
    with pytest.raises(UsageError, match="context must be at least 0 tokens; given -1"):
        stream_batches(stream(40), 21, 7, context=-1)


@pytest.mark.parametrize("warm_up", [0, 1, 2, 5])
@pytest.mark.parametrize("count", [1, 4, 20, 21, 23, 100, 300])
def test_rows_of_recurrent_batches_go_on(count: int, warm_up: int) -> None:
    """Each token is predicted once, in its lane, and what is read there goes on from the start."""
    lanes: dict[int, list[int]] = {}
    read: dict[int, list[int]] = {}
    for number, batch in enumerate(recurrent_batches(stream(count), 12, 4, warm_up)):
        assert batch.continues == (number > 0)
        assert batch.num_tokens == int(batch.mask.sum())
        assert (batch.targets[~batch.mask] == 0).all()
        for lane, row in enumerate(batch.inputs):
            read.setdefault(lane, []).extend(row[row > 0].tolist())
        for lane, (row, mask) in enumerate(zip(batch.targets, batch.mask, strict=True)):
            lanes.setdefault(lane, []).extend(row[mask].tolist())
    assert [token for lane in lanes.values() for token in lane] == list(range(10, 10 + count))
    text = [BOS, *range(10, 10 + count)]
    for lane, tokens in lanes.items():
        last = text.index(tokens[-1]) if tokens else 0
        before = 0 if lane == 0 else 4 * warm_up
        if tokens:
            assert read[lane] == text[last - len(tokens) - before : last]


@pytest.mark.parametrize(
    ("count", "warm_up", "lanes"),
    [(100, 0, 5), (100, 1, 5), (40, 1, 4), (20, 1, 2), (12, 1, 1), (100, 9, 1)],
)
def test_a_short_text_has_fewer_lanes(count: int, warm_up: int, lanes: int) -> None:
    assert len(next(recurrent_batches(stream(count), 20, 4, warm_up))) == lanes


@pytest.mark.parametrize("length", [0, 22])
def test_segments_must_fit_into_a_batch(length: int) -> None:
    with pytest.raises(UsageError, match="segments of"):
        stream_batches(stream(9), 21, length)
    with pytest.raises(UsageError, match="segments of"):
        recurrent_batches(stream(9), 21, length, 0)


@pytest.mark.gpu
def test_batches_go_to_cuda() -> None:
    batch = next(pair_batches(pairs(9), 500, device="cuda"))
    assert isinstance(batch, PairBatch) and batch.source.is_cuda and batch.target_mask.is_cuda
    assert next(stream_batches(stream(9), 9, 3, device="cuda")).mask.is_cuda
