"""Whole searches of spaces that are small, odd or of another kind, and of data that change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from nas.run.folder import RunFolder
from nas.search.front import read_front
from search_spaces.errors import DataError, UsageError
from search_spaces.loading import parse_space
from supernet.data.examples import load_search_data
from supernet.training_settings import Sampling
from tests.support.pipeline_cases import (
    TINY,
    edited,
    finished,
    finished_once,
    logged,
    named,
    results,
    tiny,
    work,
)
from tests.support.timing_cases import Machine

ONE_LAYER = (
    ("embed_dim = [4, 8]", "embed_dim = [4]"),
    ("num_layers = [1, 2]", "num_layers = [1]"),
)
EIGHT = edited(*ONE_LAYER, ('["softmax", "linear", "omni"]', '["linear", "omni"]'))
SIX = edited(*ONE_LAYER, ("num_heads = [1, 2]", "num_heads = [1]"))
SINGLE = edited(
    *ONE_LAYER,
    ('["softmax", "linear", "omni"]', '["linear"]'),
    ("num_heads = [1, 2]", "num_heads = [2]"),
    ("ffn_dim = [4, 8]", "ffn_dim = [4]"),
)
TOKENS = edited(
    ("max_length = 4", "max_length = 24"),
    ('kind = "image"', 'kind = "tokens"\nvocab_size = 16'),
    ("image_size = 8\npatch_size = 4\nchannels = 1\n", ""),
    ('dataset = "digits"', 'dataset = "listops"'),
)
CLASS_TOKEN = edited(
    ("class_token = false", "class_token = true"),
    ("max_length = 4", "max_length = 5"),
    ('"mean"', '"class"'),
)


@pytest.mark.parametrize("cost", ["flops", "latency_ms"])
def test_more_is_asked_for_than_the_space_holds(
    tmp_path: Path, cost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(monkeypatch)  # a busy one would leave doubts, and what is doubtful is timed anew
    space = parse_space(EIGHT, "space")
    run = finished(tmp_path / "run", EIGHT, objectives=("quality", cost))
    lines = run.read_journal("observations.jsonl")
    assert len(lines) == len({line["id"] for line in lines}) == space.size == 8
    scored = [row for g in run.read_journal("population.jsonl") for row in g["genotypes"]]
    assert len(scored) == len({tuple(row) for row in scored}) <= 8
    assert 1 <= len(read_front(run).entries) <= 8
    measured = [e["stage"] for e in logged(run) if e["event"] == "ArchitectureMeasured"]
    assert "verify" not in measured  # all that evolution can find was observed


@pytest.mark.parametrize(("text", "size"), [(SIX, "6 networks"), (SINGLE, "1 network,")])
def test_a_space_too_small_to_learn_from(tmp_path: Path, text: str, size: str) -> None:
    run = tiny(tmp_path / "run", text)
    with pytest.raises(UsageError, match=rf"the space tiny holds {size}.*at least 8"):
        work(run)
    assert not list(run.path.glob("stages/*.json"))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(TOKENS, id="tokens"),
        pytest.param(CLASS_TOKEN, id="class token", marks=pytest.mark.slow),
    ],
)
def test_another_kind_of_input(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRAIN", "VALID", "TEST"):
        monkeypatch.setattr(f"supernet.data.sources.LISTOPS_{name}", 300)
    run = finished(tmp_path / "run", text, numbers={"supernet.epochs": "1", "retrain.epochs": "1"})
    assert read_front(run).entries and len(results(run)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["performer", "linformer", "bigbird", "full"])
@pytest.mark.parametrize("linear", ["cosformer", "norm"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_every_kernel(tmp_path: Path, kernel: str, linear: str, norm: str) -> None:
    text = edited(
        ('omni_kernel = "performer"', f'omni_kernel = "{kernel}"'),
        ('"cosformer"', f'"{linear}"'),
        ('"pre"', f'"{norm}"'),
    )
    timed: dict[str, Any] = {"objectives": ("quality", "params", "flops", "latency_ms")}
    assert read_front(finished(tmp_path / "run", text, **timed)).entries


@pytest.mark.slow
@pytest.mark.parametrize("sampling", get_args(Sampling))
@pytest.mark.parametrize("ema_decay", ["0", "0.9"])
def test_every_way_to_train(tmp_path: Path, sampling: str, ema_decay: str) -> None:
    numbers = {"supernet.sampling": sampling, "supernet.ema_decay": ema_decay}
    numbers |= {"supernet.augmentation": "shift=1", "retrain.ema_decay": ema_decay}
    one, two = (finished(tmp_path / name, numbers=numbers) for name in "ab")
    assert results(one) == results(two)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"numbers": {"supernet.augmentation": "shfit=1"}}, "shfit"),
        ({"numbers": {"retrain.augmentation": "shift=99"}}, "shift"),
        ({"text": TOKENS, "numbers": {"retrain.augmentation": "flip"}}, "images"),
        ({"numbers": {"retrain.loss_chunk": "1024"}}, "those of classification .* set it to 0"),
        ({"dataset": "digts"}, "digits"),
        ({"data": "x.npz"}, "leave out --data"),
    ],
)
def test_wrong_requests_are_refused_first(
    tmp_path: Path, values: dict[str, Any], words: str
) -> None:
    run = tiny(tmp_path / "run", **values)
    with pytest.raises((UsageError, DataError), match=words):
        work(run)
    assert {event["stage"] for event in logged(run)} == {"declare"}


@pytest.mark.parametrize("device", ["tpu", "cuda:999"])
def test_another_device_is_no_request(tmp_path: Path, device: str) -> None:
    with pytest.raises(UsageError, match=f"device is '{device}': input should be 'cpu' or 'cuda'"):
        tiny(tmp_path / "run", device=device)


# -- a world that changes -----------------------------------------------------------------------


def test_data_that_change_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished_once(tmp_path / "run")
    before = results(run)
    with monkeypatch.context() as patch:
        patch.setattr(
            "supernet.tasks.classification.load_search_data",
            lambda *arguments: replace(load_search_data(*arguments), digest="another"),
        )
        assert named(work(run), "StageStarted") == []  # nothing needs the data any more
        (run.path / "observations.jsonl").unlink()
        with pytest.raises(DataError, match="digits has changed since this run began"):
            work(run)
    work(run)
    assert results(run) == before


def test_another_device_halfway_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished(tmp_path / "run", TINY, objectives=("quality", "latency_ms"))
    (run.path / "verification.jsonl").unlink()
    monkeypatch.setattr("latency.device._cpu_name", lambda *_: "Another processor")
    with pytest.raises(DataError, match="timed elsewhere.*Another processor"):
        work(RunFolder.open(run.path))
    monkeypatch.undo()
