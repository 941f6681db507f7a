"""ListOps: values, rules of the draw, determinism."""

import itertools

import numpy as np
import pytest

from search_spaces.errors import DataError, UsageError
from supernet.data import listops
from supernet.data.listops import LengthBounds, evaluate, generate, pad

SHORT = LengthBounds(8, 32)


def slow_value(words: list[str]) -> int:
    """Replace an innermost list by its value until one digit is left."""
    while len(words) > 1:
        end = words.index("]")
        start = max(i for i in range(end) if words[i].startswith("["))
        numbers = np.array([int(word) for word in words[start + 1 : end]])
        value = {
            "[MIN": numbers.min(),
            "[MAX": numbers.max(),
            "[MED": np.median(numbers),
            "[SM": numbers.sum() % 10,
        }[words[start]]
        words = [*words[:start], str(int(value)), *words[end + 1 :]]
    return int(words[0])


def tokenise(text: str) -> list[int]:
    """Token numbers of a list as people write it; parentheses are dropped."""
    words = text.replace("(", " ").replace(")", " ").replace("]", " ] ").split()
    return [listops.SYMBOLS.index(word) for word in words]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        ("[MIN 2 9 [SM 4 7 ] 3 ]", 1),
        ("[MED 5 1 9 ]", 5),
        ("[MED 1 4 ]", 2),
        ("[MED 9 0 3 4 ]", 3),
        ("[SM 9 9 9 ]", 7),
        ("( ( ( [SM 1 ) 2 ) ] )", 3),
    ],
)
def test_values_worked_by_hand(text: str, value: int) -> None:
    assert evaluate(tokenise(text)) == value


@pytest.mark.parametrize("text", ["", "1 2", "[MIN ]", "[MIN 1 2", "1 ]", "]", "[MIN 1 ] ]"])
def test_malformed_lists_are_refused(text: str) -> None:
    with pytest.raises(DataError, match="not a ListOps list"):
        evaluate(tokenise(text))


def test_an_unknown_token_is_refused() -> None:
    with pytest.raises(DataError, match="not a ListOps list"):
        evaluate([listops.FIRST_OPERATOR, 1, listops.VOCAB_SIZE])


def test_evaluator_agrees_with_rewriting() -> None:
    for row in generate(200, LengthBounds(20, 150), seed=1):
        assert evaluate(row.tolist()) == slow_value([listops.SYMBOLS[token] for token in row])


def test_padding_does_not_change_a_value() -> None:
    rows = generate(20, SHORT, seed=2)
    for row, padded in zip(rows, pad(rows), strict=True):
        assert evaluate(row.tolist()) == evaluate(padded.tolist())
        assert np.array_equal(padded[: len(row)], row)
        assert not padded[len(row) :].any()


def test_lists_keep_the_rules() -> None:
    rows = generate(300, LengthBounds(50, 200), seed=3)
    assert all(50 < len(row) < 200 for row in rows)
    assert len({row.tobytes() for row in rows}) == len(rows)
    for row in rows:
        arguments = [0]
        for token in row:
            arguments[-1] += token != listops.CLOSE
            if token == listops.CLOSE:
                assert 2 <= arguments.pop() <= 10
            elif token >= listops.FIRST_OPERATOR:
                arguments.append(0)
                # Operators stand at depth 9 at most, so that their arguments reach depth 10.
                assert len(arguments) <= listops.MAX_DEPTH
        assert arguments == [1]


def test_symbols_are_drawn_evenly() -> None:
    tokens = np.concatenate(generate(400, LengthBounds(50, 200), seed=4))
    counts = np.bincount(tokens, minlength=listops.VOCAB_SIZE)
    assert counts[0] == 0
    for symbols in (counts[1:11], counts[11:15]):
        assert np.ptp(symbols) < 0.1 * symbols.mean()
    assert counts[listops.CLOSE] == counts[11:15].sum()


def test_root_lengths_follow_the_arena_generator() -> None:
    """Shares of short trees against a plain recursive draw of the same tree."""
    rng = np.random.default_rng(0)

    def length(depth: int = 1) -> int:
        if depth == listops.MAX_DEPTH or rng.random() > listops.OPERATOR_PROBABILITY:
            return 1
        return 2 + sum(length(depth + 1) for _ in range(rng.integers(2, 11)))

    plain = np.array([length() for _ in range(1500)])
    levels = listops._grow(np.random.default_rng(1))
    ours = listops._lengths(levels)[0]
    for bound in (2, 10, 100, 500):
        assert (plain < bound).mean() == pytest.approx((ours < bound).mean(), abs=0.04)


def test_draw_depends_on_the_seed_alone_and_grows_by_appending() -> None:
    many, few, other = (
        generate(*args) for args in ((90, SHORT, 5), (40, SHORT, 5), (90, SHORT, 6))
    )
    assert all(np.array_equal(a, b) for a, b in zip(few, many[:40], strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(many, other, strict=True))


def test_exhausted_bounds_end_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listops, "MAX_DRAWS_WITHOUT_GAIN", 3)
    shortest = {row.tobytes() for row in generate(395, LengthBounds(3, 5), seed=0)}
    operators, digits = range(11, 15), range(1, 11)
    every = {bytes((o, a, b, 15)) for o, a, b in itertools.product(operators, digits, digits)}
    assert shortest <= every
    with pytest.raises(DataError, match=r"only (39\d|400) of 401"):
        generate(401, LengthBounds(3, 5), seed=0)


@pytest.mark.parametrize(("above", "below"), [(128, 128), (128, 129), (-1, 50), (0, 4), (600, 500)])
def test_impossible_bounds_are_refused(above: int, below: int) -> None:
    with pytest.raises(UsageError, match="do not exist"):
        LengthBounds(above, below)
