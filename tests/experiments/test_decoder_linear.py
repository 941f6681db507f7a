"""The study of linear attention in decoders: whose trainings are taken, and what is kept."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments import decoder_linear
from experiments.decoder_linear import (
    JOURNAL,
    STUDY,
    VARIANTS,
    Job,
    add_scores,
    kept_in,
    results_of,
    summary,
)
from experiments.harness import done_jobs
from tests.support.study_cases import threads

WHOLE = ["--data", "DIR", "--test", "--times"]


def result(seed: int = 1, variant: str = "all softmax", **scores: float | None) -> dict[str, Any]:
    key = f"{variant} | {seed}"
    known = {"key": key, "variant": variant, "seed": seed, "params": 1, "valid_loss": 2.0}
    return known | {"valid_bleu": 30.0, "attended": 0.2} | scores


def test_trainings_with_other_data_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = {"one": "a", "two": "b", "copy": "a"}
    monkeypatch.setattr(
        decoder_linear,
        "read_manifest",
        lambda folder: SimpleNamespace(request=manifests[folder.name]),
    )
    one, two, copy = (kept_in(tmp_path, Path(name)) for name in manifests)
    assert one == copy != two
    assert {folder.parent for folder in (one, two)} == {tmp_path}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (WHOLE, "decoder_linear"),
        (WHOLE[:3], None),
        ([*WHOLE, "--finished"], None),
        ([*WHOLE, "--seeds", "1,2"], None),
        ([*WHOLE, "--variants", "all softmax"], None),
    ],
)
def test_only_a_whole_study_is_kept(words: list[str], name: str | None) -> None:
    assert results_of(STUDY.parser.parse_args(words)) == name


def test_a_variant_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        STUDY.main(["--data", "DIR", "--variants", "foo"])
    assert "invalid choice: 'foo'" in capsys.readouterr().err


def test_scores_are_taken_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def scored(job: Job) -> float:
        asked.append(job.key)
        return 0.5

    monkeypatch.setattr(decoder_linear, "processes", threads)
    for name in ("attended", "score_test"):
        monkeypatch.setattr(decoder_linear, name, scored)
    jobs = [Job("all softmax", seed, "DIR", str(tmp_path)) for seed in (1, 2)]
    results = [result(1), result(2)]
    del results[1]["attended"]
    add_scores(jobs, results, 1, test=False)
    assert asked == [jobs[1].key]
    add_scores(jobs, results, 1, test=True)
    assert asked[1:] == [job.key for job in jobs]
    assert list(done_jobs(tmp_path / JOURNAL).values()) == results[::-1]
    add_scores(jobs, results, 1, test=True)
    assert len(asked) == 3


def test_a_row_is_of_all_seeds_and_marks_decide() -> None:
    linear = [result(seed, "cosFormer: cross", valid_bleu=28.0) for seed in (1, 2)]
    rows = summary([result(1), result(2, attended=0.4), *linear], {}, 10, 5)
    assert [row["attended"] for row in rows] == pytest.approx([0.3, 0.2])
    assert STUDY.met({"variants": rows})
    for one in linear:
        one["valid_bleu"] = 27.8  # 0.927 of softmax's
    missed = summary([result(1), *linear], {}, 10, 5)
    assert not STUDY.met({"variants": missed})
    assert not STUDY.met({"variants": summary(linear, {}, 10, 5)})
    assert not STUDY.met({"variants": []})
    norm = [result(seed, "norm-linear everywhere", attended=None) for seed in (1, 2)]
    assert summary(norm, {}, 10, 5)[0]["attended"] is None
    assert VARIANTS["cosFormer: cross"].target == 0.93
