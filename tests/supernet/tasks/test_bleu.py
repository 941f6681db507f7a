"""BLEU against numbers counted by hand, a slow twin, and bad input."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from search_spaces.errors import UsageError
from supernet.tasks.bleu import corpus_bleu


def naive_bleu(hypotheses: list[str], references: list[str]) -> float:
    """The formula of the paper, for text whose words are plain, without smoothing."""
    matches, totals, lengths = [0] * 4, [0] * 4, [0, 0]
    for pair in zip(hypotheses, references, strict=True):
        mine, wanted = (line.split() for line in pair)
        lengths = [lengths[0] + len(mine), lengths[1] + len(wanted)]
        for n in range(4):
            counts, known = (
                Counter(tuple(words[i : i + n + 1]) for i in range(len(words) - n))
                for words in (mine, wanted)
            )
            matches[n] += (counts & known).total()
            totals[n] += counts.total()
    brevity = min(0.0, 1 - lengths[1] / lengths[0])
    return 100 * math.exp(
        brevity + sum(math.log(m / t) for m, t in zip(matches, totals, strict=True)) / 4
    )


def test_an_example_counted_by_hand() -> None:
    """The second "the" is one too many: 5 of 6 words, 3 of 5 pairs, 2 of 4, 1 of 3."""
    found = corpus_bleu(["the cat sat on the mat"], ["the cat sat on a mat"])
    assert found.precisions == pytest.approx((500 / 6, 300 / 5, 200 / 4, 100 / 3))
    assert found.score == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert (found.brevity_penalty, found.hypothesis_length, found.reference_length) == (1.0, 6, 6)


def test_what_is_too_short_is_punished() -> None:
    found = corpus_bleu(["the cat sat on"], ["the cat sat on a mat"])
    assert found.score == pytest.approx(100 * math.exp(1 - 6 / 4))
    assert found.brevity_penalty == pytest.approx(math.exp(1 - 6 / 4))


def test_counts_are_summed_over_the_lines() -> None:
    """Which is not the mean over the lines."""
    hypotheses = ["the cat sat on the mat", "a dog ran home", "the bird"]
    references = ["the cat sat on a mat", "a dog ran home", "the bird sang"]
    assert corpus_bleu(hypotheses, references).score == pytest.approx(
        naive_bleu(hypotheses, references)
    )


def test_equals_the_naive_twin_on_random_words() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        references = [" ".join(rng.choice(list("ab"), rng.integers(4, 12))) for _ in range(9)]
        hypotheses = [" ".join(rng.choice(list("ab"), rng.integers(4, 12))) for _ in range(9)]
        found = corpus_bleu(hypotheses, references).score
        assert found == pytest.approx(naive_bleu(hypotheses, references))


def test_a_perfect_translation_has_100_and_not_more() -> None:
    lines = ["eins zwei drei vier fünf", "Was, schon sechs?"]
    assert corpus_bleu(lines, lines).score == pytest.approx(100.0)
    assert corpus_bleu(lines, lines).score <= 100.0


def test_punctuation_is_split_and_case_counts() -> None:
    apart = corpus_bleu(["One, two, three."], ["One , two , three ."])
    assert apart.score == pytest.approx(100.0) and apart.hypothesis_length == 6
    assert corpus_bleu(["one, two, three."], ["One, two, three."]).score < 90


def test_empty_translations_count_as_nothing() -> None:
    lines = ["the cat sat on a mat", "a dog ran home"]
    half = corpus_bleu([lines[0], ""], lines)
    assert half.score == pytest.approx(100 * math.exp(1 - 10 / 6))
    assert corpus_bleu(["", ""], lines).score == 0.0


def test_the_signature_says_how_it_was_counted() -> None:
    signature = corpus_bleu(["a b c d"], ["a b c d"]).signature
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_full_stops_that_stand_alone_are_no_reason_to_warn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = ["a b c d ."] * 200
    assert corpus_bleu(lines, lines).score == pytest.approx(100.0)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (["a", "b"], ["a"], "2 translations and 1 references"),
        ([], ["a"], "0 translations and 1 references"),
        ([], [], "at least one reference"),
        (["a", "b"], ["", " "], "at least one reference"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    hypotheses: list[str], references: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        corpus_bleu(hypotheses, references)
