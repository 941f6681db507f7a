"""Which keys [data] has: of each task, of each data set, and in what runs kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces import dump_space, load_space, parse_space
from search_spaces.errors import SpaceFileError


def with_data(space: str, lines: str) -> str:
    """A shipped space with another [data] table."""
    return f"{dump_space(replace(load_space(space), data={}))}\n[data]\n{lines}\n"


@pytest.mark.parametrize(
    ("space", "lines"),
    [
        ("digits", 'dataset = "digits"\nmean = [0.5]\nstd = [0.5]'),
        ("multi30k", 'languages = ["de", "en"]\npost_process = "subword_nmt"'),
        ("lm-small", 'dataset = "text"\nrecall_window = 8'),
        ("lm-small", "pairs = 4"),  # with --dataset recall
        ("recall", 'dataset = "recall"\nrecall_window = 8\npairs = 4\ngap = 1\ntest = 9'),
    ],
)
def test_what_is_read_may_be_written(space: str, lines: str) -> None:
    assert parse_space(with_data(space, lines), "mine.toml").data


@pytest.mark.parametrize(
    ("space", "lines", "message"),
    [
        (
            "digits",
            "means = [0.5]",
            r"data.means: found 'means' \(did you mean 'mean'\?\), allowed",
        ),
        ("digits", "recall_window = 8", "data.recall_window: found"),
        ("listops", "std = [0.5]", "data.std: found 'std'"),
        ("multi30k", 'language = ["de", "en"]', "did you mean 'languages'"),
        ("lm-small", 'dataset = "text"\nrecall_windw = 8', "did you mean 'recall_window'"),
        ("lm-small", 'dataset = "text"\npairs = 4', "data.pairs: found 'pairs'"),
        ("recall", 'dataset = "recall"\npair = 4', "did you mean 'pairs'"),
    ],
)
def test_what_nobody_reads_is_refused(space: str, lines: str, message: str) -> None:
    text = with_data(space, lines)
    with pytest.raises(SpaceFileError, match=rf"mine.toml, line \d+, .*{message}"):
        parse_space(text, "mine.toml")
    assert parse_space(text, "mine.toml", kept=True).data, "runs of earlier versions kept such"


RECALL = 'dataset = "recall"\n'


@pytest.mark.parametrize(
    ("lines", "line", "message"),
    [
        (f"{RECALL}pairs = 0", 2, "data.pairs: pairs of the recall data is a whole number of at "),
        (f"{RECALL}gap = 1\npairs = 999", 3, "data.pairs: 999 pairs need as many keys"),
        (f"{RECALL}pairs = 4\nlength = 15", 3, "data.length: 4 pairs .* length is 15"),
        (f"{RECALL}gap = 999_999", 2, "data.gap: .* need sequences of"),
        (f"{RECALL}length = 999_999", 2, "data.length: sequences of .* need more memory"),
        (f"{RECALL}length = 9_999", 2, "data.length: .* set max_length of .model. to 9999 or mo"),
        (f"{RECALL}vocabulary = 9_999", 2, "data.vocabulary: .* set vocab_size of .model.input."),
        (f"{RECALL}valid = 9\ntrain = 99_999_999_999_999\npairs = 2", 3, "data.train: there are"),
        (f"{RECALL}test = 999_999_999_999\npairs = 16", 2, "data.test: .* need more memory to be"),
        (f"{RECALL}recall_window = -1", 2, "data.recall_window: found -1, allowed is a whole num"),
        ("pairs = 0", 1, "data.pairs: pairs of the recall data is"),  # with --dataset recall
    ],
)
def test_wrong_numbers_are_named_with_their_line(lines: str, line: int, message: str) -> None:
    text = with_data("recall", lines)
    first = text[: text.index("[data]\n")].count("\n") + 1
    with pytest.raises(SpaceFileError, match=rf"mine.toml, line {first + line}, {message}"):
        parse_space(text, "mine.toml")
    assert parse_space(text, "mine.toml", kept=True).data, "runs of earlier versions kept such"
