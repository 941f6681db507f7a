"""Vocabularies that are learnt from labelled texts."""

from __future__ import annotations

import json

import pytest

from search_spaces.errors import UsageError
from supernet.data.byte_pairs import learn_byte_pairs

TEXTS = ["the cat sat on the mat", "the hat of the cat"] * 3


def test_frequent_pairs_are_tokens_and_any_text_can_be_written() -> None:
    found = learn_byte_pairs(TEXTS, 270, "a.jsonl")
    assert found.vocab_size == 270 and found.padding == 0
    assert (found.begin, found.end) == ((), ())
    # "the" is joined in two steps, and a space goes with the word behind it.
    (row,) = found.encode(["the the"])
    assert len(row) == 2 and row[0] == row[1]
    for text in ("grüße 你好 \0 <pad>", "<pad>", "\x7f"):
        (row,) = found.encode([text])
        assert row and 0 not in row and found.decode([row])[0].strip() == text


def test_text_is_normalised() -> None:
    found = learn_byte_pairs(TEXTS, 270, "a.jsonl")
    assert found.encode(["\ufb01t \uff15"]) == found.encode(["fit 5"])


def test_equal_texts_give_equal_vocabularies() -> None:
    one, other = (learn_byte_pairs(iter(TEXTS), 265, name) for name in ("a", "b"))
    assert one.content == other.content and one.marks == other.marks == {"pad_token": "<pad>"}
    assert json.loads(one.content)["added_tokens"] == []


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="of 256 is too small: bytes and padding alone need 257"):
        learn_byte_pairs(TEXTS, 256, "a.jsonl")
    with pytest.raises(UsageError, match=r"of 4,?000 is larger than a\.jsonl can give; pass"):
        learn_byte_pairs(TEXTS, 4000, "a.jsonl")
    assert 257 < learn_byte_pairs(TEXTS, 4000, "a.jsonl", exact=False).vocab_size < 300
