"""The generated corpus: what its grammar promises, and that splits are apart."""

from __future__ import annotations

from itertools import pairwise

import pytest

from search_spaces.errors import UsageError
from supernet.data.prepared import PairSplit
from supernet.data.synthetic import (
    ADJECTIVES,
    ENDINGS,
    LETTERS,
    NOUNS,
    SYNTHETIC_PAIRS,
    SYNTHETIC_STREAM,
    VERB_ENDINGS,
    VERBS,
    generate,
    words,
)
from supernet.data.text_batches import padding_share, plan_pair_batches
from supernet.data.tokenizer import EOS, UNKNOWN

SENTENCES = generate(400, 1)
GENDER = {noun: gender for _, _, noun, gender in NOUNS}


def nouns(target: list[str]) -> list[tuple[int, str, int]]:
    """(place, noun, number) of each noun of a translation."""
    found = []
    for place, word in enumerate(target):
        stem = word.removesuffix("n")
        if stem in GENDER:
            found.append((place, stem, int(word != stem)))
    return found


def test_translations_begin_with_the_letters_at_the_end() -> None:
    for sentence in SENTENCES:
        letters = sentence.source.partition(" , ")[2].removesuffix(" .")
        assert set(letters.split()) <= set(LETTERS)
        assert sentence.target.startswith(f"{letters} : ")
        assert sentence.text == f"{sentence.target} {letters}"


def test_articles_and_adjectives_agree_with_their_noun() -> None:
    stems = [stem for _, stem in ADJECTIVES]
    for sentence in SENTENCES:
        target = sentence.target.split()
        for place, noun, number in nouns(target):
            ending = ENDINGS[GENDER[noun]][number]
            assert target[place - 1] in (f"l{ending}", f"un{ending}")
            if any(target[place + 1].startswith(stem) for stem in stems):
                assert target[place + 1] in [stem + ending for stem in stems]


def test_the_verb_agrees_with_a_subject_that_may_stand_far_away() -> None:
    plural = {many for _, many, _ in VERBS}
    verbs = plural | {one for one, _, _ in VERBS}
    for sentence in SENTENCES:
        # The main verb is the last verb of the source that no "that" stands before.
        source, target = sentence.source.split(), sentence.target.split()
        main = [w for before, w in pairwise(source) if before != "that"]
        (verb,) = [word for word in main if word in verbs]
        _, _, number = nouns(target)[-1]  # subject, object, verb: the subject's noun is the last
        assert (verb in plural) == bool(number)
        assert target[-2] in [stem + VERB_ENDINGS[number] for _, _, stem in VERBS]


def test_objects_come_before_subjects() -> None:
    plain = [s for s in SENTENCES if " that " not in s.source]
    english = {word: stem for one, many, stem, _ in NOUNS for word in (one, many)}
    assert len(plain) > 50
    for sentence in plain:
        subject, object_ = (english[w] for w in sentence.source.split() if w in english)
        assert [noun for _, noun, _ in nouns(sentence.target.split())] == [object_, subject]


def test_sentences_differ_and_more_only_append() -> None:
    assert len({sentence.source for sentence in SENTENCES}) == len(SENTENCES)
    assert generate(50, 1) == SENTENCES[:50] != generate(50, 2)
    with pytest.raises(UsageError, match="seed"):
        generate(1, -1)


def test_every_word_is_in_the_vocabulary_and_used() -> None:
    used = {word for s in generate(3000, 0) for word in f"{s.source} {s.target}".split()}
    assert used == set(words())


def test_splits_of_pairs_share_no_sentence() -> None:
    data, test = SYNTHETIC_PAIRS.open(0), SYNTHETIC_PAIRS.open_test(0)
    assert (len(data.train), len(data.valid), len(test)) == (6000, 300, 100)
    splits = [{row.tobytes() for row in split.source} for split in (data.train, data.valid, test)]
    assert sum(map(len, splits)) == len(set.union(*splits)) == 6400
    assert data.train.target_lines == () and len(data.valid.target_lines) == 300
    assert data.digest == SYNTHETIC_PAIRS.open(0).digest != SYNTHETIC_PAIRS.open(1).digest
    assert data.digest != SYNTHETIC_STREAM.open(0).digest


def test_rows_are_the_text_and_fit() -> None:
    data = SYNTHETIC_PAIRS.open(0)
    tokenizer = data.target_tokenizer
    assert tokenizer is not None and tokenizer is data.source_tokenizer
    assert tuple(tokenizer.decode([row.tolist() for row in data.valid.target])) == (
        data.valid.target_lines
    )
    rows = [row for split in (data.train, data.valid) for row in (*split.source, *split.target)]
    assert max(map(len, rows)) + 1 == data.longest
    assert all(UNKNOWN < row.min() <= row.max() < tokenizer.vocab_size for row in rows)


def test_batches_of_it_have_little_padding() -> None:
    split: PairSplit = SYNTHETIC_PAIRS.open(0).train
    assert padding_share(split, plan_pair_batches(split, 2048)) < 0.1


def test_text_to_model_ends_each_line() -> None:
    data, test = SYNTHETIC_STREAM.open(0), SYNTHETIC_STREAM.open_test(0)
    assert data.target_tokenizer is not None
    for split in (data.train, data.valid, test):
        assert all(row[-1] == EOS and EOS not in row[:-1] for row in split.rows)
        assert len(split) == split.num_words + len(split.rows)
    text = data.target_tokenizer.decode([test.rows[0].tolist()])[0]
    assert text == generate(6301, 0)[6300].text and len(test.rows) == 100
