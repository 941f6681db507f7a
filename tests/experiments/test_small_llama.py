"""The small checkpoint in Llama's form: trained, saved, read back by this project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from experiments import small_llama
from supernet.pretrained.checkpoint import read_checkpoint

pytestmark = pytest.mark.export


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.harness.RESULTS", tmp_path)


def test_a_small_checkpoint_is_trained_and_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for split in ("train", "valid"):
        lines = [f"def {split}_{n}(value):\n\n    return value + {n}" for n in range(40)]
        (tmp_path / f"{split}.txt").write_text("\n".join(lines), encoding="utf-8")
    given = ["--text", str(tmp_path), "--out", str(tmp_path / "llama"), "--updates", "2"]
    given += ["--length", "32", "--batch", "1", "--vocab-size", "300", "--window", "4", "--json"]
    assert small_llama.STUDY.main(given) in (0, 1)
    numbers = json.loads((tmp_path / "small_llama.json").read_text())
    assert [one["updates"] for one in numbers["curve"]] == [1, 2]
    assert list(small_llama.show(numbers))
    checkpoint = read_checkpoint(tmp_path / "llama")
    assert checkpoint.family == "llama"
    own = checkpoint.network().network.eval()
    read = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "llama")
    tokens_BN = torch.arange(12).view(1, 12)
    with torch.inference_mode():
        wanted = read(tokens_BN).logits
        assert torch.allclose(own(tokens_BN, checkpoint.architecture), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("lines", "option", "sentence"),
    [
        ({"train": 1}, ["--length", "64"], "train.txt has 14 tokens, and a segment is 65"),
        ({"valid": 1}, ["--length", "64"], "valid.txt has 14 tokens, and a segment is 65"),
        ({}, ["--length", "64", "--window", "64"], "from beyond 64 tokens: give longer segments"),
    ],
)
def test_texts_that_say_nothing_are_refused_before_the_training(
    lines: dict[str, int],
    option: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for split in small_llama.SPLITS:
        text = "\n".join(["a line of text"] * lines.get(split, 40))
        (tmp_path / f"{split}.txt").write_text(text, encoding="utf-8")
    given = ["--text", str(tmp_path), "--out", str(tmp_path / "llama"), "--vocab-size", "258"]
    assert small_llama.STUDY.main([*given, *option]) == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_without_text_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--text", str(tmp_path), "--out", str(tmp_path / "llama")]
    assert small_llama.STUDY.main(given) == 2
    assert "no such file" in capsys.readouterr().err
