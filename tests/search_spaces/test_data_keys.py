"""Which keys [data] has: of each task, of each data set, and in what runs kept."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from search_spaces import dump_space, load_space, parse_space
from search_spaces.data_keys import RECALL_FORM
from search_spaces.errors import SpaceFileError
from supernet.data.recall import RecallSettings


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


def test_the_form_of_recall_stands_once() -> None:
    assert [field.name for field in fields(RecallSettings)] == list(RECALL_FORM)
