"""Exports with `modeling.py`: they run without us, and give what the run's model gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nas.results.export import verify_export
from nas.run.folder import RunFolder
from search_spaces.errors import DataError
from supernet.beam_search import BeamSettings
from supernet.export.contents import read_reference
from supernet.export.formats import check_parity, open_format
from supernet.export.weights import read_tensors, write_tensors
from supernet.tasks.translating import StepwiseTranslator, translate_rows
from tests.supernet.data.test_recall import SPACE
from tests.support.export_cases import export_to, module_of, opened, run_of, seal
from tests.support.trained_cases import trained

pytestmark = pytest.mark.export

TASKS = ["translation", "language_modelling", "classification"]
# What is not there in an environment of torch and safetensors.
BLOCKED = (
    "search_spaces supernet latency nas service experiments transformers sentencepiece pydantic"
)
CHECK = f"""
import runpy, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED.split()}:
            raise ModuleNotFoundError(f"No module named {{name}}", name=name)
sys.meta_path.insert(0, Blocked())
sys.argv = [sys.argv[1], *sys.argv[2:]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    return {task: run_of(tmp_path_factory.mktemp(task) / "run", task) for task in TASKS}


@pytest.fixture(scope="module")
def folder(runs: dict[str, RunFolder], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_to(
        runs["translation"], "safetensors", tmp_path_factory.mktemp("made") / "out"
    ).path


def run_alone(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``modeling.py`` from elsewhere, where nothing of ours can be imported."""
    command = [sys.executable, "-I", "-c", CHECK, str(folder / "modeling.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")


@pytest.mark.parametrize("form", ["safetensors", "torch"])
@pytest.mark.parametrize("task", TASKS)
def test_outputs_are_those_of_the_run(
    runs: dict[str, RunFolder], task: str, form: str, tmp_path: Path
) -> None:
    exported = export_to(runs[task], form, tmp_path / "out")
    assert exported.facts["difference"] < 1e-4
    network = module_of(tmp_path / "out").load_network()
    assert sum(p.numel() for p in network.parameters()) == exported.facts["params"]
    verify_export(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["safetensors", "torch"])
@pytest.mark.parametrize("task", TASKS)
def test_the_file_checks_itself_without_us(
    runs: dict[str, RunFolder], task: str, form: str, tmp_path: Path
) -> None:
    exported = export_to(runs[task], form, tmp_path / "out")
    done = run_alone(tmp_path / "out", "--check")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{exported.facts['params']} parameters")


@pytest.mark.slow
def test_the_file_notices_other_weights(folder: Path, tmp_path: Path) -> None:
    copied(folder, tmp_path)
    weights = read_tensors(folder / "model.safetensors")
    weights["embedding.weight"] *= 1.5
    write_tensors(tmp_path / "model.safetensors", weights)
    done = run_alone(tmp_path, "--check")
    assert done.returncode == 1 and "failed" in done.stderr


@pytest.mark.slow
def test_the_file_says_how_it_is_used(folder: Path) -> None:
    done = run_alone(folder)
    assert done.returncode == 1 and "usage: python modeling.py --check" in done.stderr


@pytest.mark.parametrize("beam", [1, 4])
def test_translations_are_those_of_the_run(
    runs: dict[str, RunFolder], folder: Path, beam: int
) -> None:
    network, data = opened(runs["translation"])
    task: Any = data.task
    rows = task.source_tokenizer.encode(task.valid.source_lines[:50])
    words = task.target_tokenizer.vocab_size
    ours: Any = StepwiseTranslator(network.model, network.architecture, words)  # type: ignore[arg-type]
    expected = translate_rows(ours, rows, BeamSettings(beam), max_tokens=9999, device="cpu")
    module = module_of(folder)
    alone = module.load_network()
    assert [tuple(module.translate(alone, row, beam)) for row in rows] == expected


def test_a_text_is_continued(runs: dict[str, RunFolder], tmp_path: Path) -> None:
    export_to(runs["language_modelling"], "safetensors", tmp_path / "out")
    module = module_of(tmp_path / "out")
    network = module.load_network()
    written = module.continue_text(network, [1], count=5)
    logits = network(torch.tensor([[1, *written]]))[0, :-1, 1 : network.num_words]
    assert written == (logits.argmax(dim=-1) + 1).tolist()


def test_drawn_texts_differ_by_seed(runs: dict[str, RunFolder], tmp_path: Path) -> None:
    export_to(runs["language_modelling"], "safetensors", tmp_path / "out")
    module = module_of(tmp_path / "out")
    network = module.load_network()
    texts = [module.continue_text(network, [1], 9, temperature=1.0, seed=s) for s in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


def test_sequences_that_stand_alone_are_exported_whole(tmp_path: Path) -> None:
    """Also where they are longer than several segments of other texts."""
    text = SPACE.replace("max_length = 24", "max_length = 160")
    made = export_to(trained(tmp_path / "run", text), "safetensors", tmp_path / "out")
    assert made.facts["difference"] < 1e-4
    reference = read_reference(tmp_path / "out" / "check.safetensors")
    assert reference.inputs["tokens"].shape == (4, 160)


def test_too_long_a_source_is_refused(folder: Path) -> None:
    module = module_of(folder)
    with pytest.raises(ValueError, match="70 positions, but the network has 64"):
        module.translate(module.load_network(), [5] * 69)


def test_text_stays_readable(folder: Path) -> None:
    text = (folder / "modeling.py").read_text()
    assert max(map(len, text.splitlines())) <= 100
    assert "supernet" not in text and "template" not in text


# -- bad folders ------------------------------------------------------------------------------


def copied(folder: Path, to: Path) -> None:
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())


def refused(folder: Path, weights: dict[str, torch.Tensor] | bytes, to: Path, match: str) -> None:
    """Verify a copy with other weights and fitting checksums."""
    copied(folder, to)
    if isinstance(weights, bytes):
        (to / "model.safetensors").write_bytes(weights)
    else:
        write_tensors(to / "model.safetensors", weights)
    seal(to)
    with pytest.raises(DataError, match=match):
        verify_export(to)


def test_a_missing_modeling_file(folder: Path, tmp_path: Path) -> None:
    copied(folder, tmp_path)
    (tmp_path / "modeling.py").unlink()
    with pytest.raises(DataError, match=r"modeling\.py is missing; export the network anew"):
        check_parity(open_format("safetensors"), tmp_path)


@pytest.mark.parametrize("which", [0, 1])
def test_outputs_that_are_no_numbers_fail_the_check(
    folder: Path, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first way to compute them, and of the second."""
    module = module_of(folder)
    module.check()
    outputs = module.outputs

    def broken(*given: Any) -> Any:
        found = outputs(*given)
        found[which]["logits"][0, 0, 0] = torch.nan
        return found

    monkeypatch.setattr(module, "outputs", broken)
    with pytest.raises(SystemExit, match="failed"):
        module.check()


def test_a_missing_tensor(folder: Path, tmp_path: Path) -> None:
    weights = read_tensors(folder / "model.safetensors")
    del weights["decoder.final_norm.bias"]
    refused(folder, weights, tmp_path, r"has no tensor decoder\.final_norm\.bias")


def test_an_extra_tensor(folder: Path, tmp_path: Path) -> None:
    weights = read_tensors(folder / "model.safetensors") | {"more": torch.zeros(2)}
    refused(folder, weights, tmp_path, "a tensor too much, more")


def test_a_wrong_shape(folder: Path, tmp_path: Path) -> None:
    weights = read_tensors(folder / "model.safetensors")
    weights["embedding.weight"] = weights["embedding.weight"][:, :-1]
    refused(folder, weights, tmp_path, r"embedding\.weight is \(160, \d+\) of float32, but")


def test_a_wrong_type(folder: Path, tmp_path: Path) -> None:
    weights = read_tensors(folder / "model.safetensors")
    weights["embedding.weight"] = weights["embedding.weight"].half()
    refused(folder, weights, tmp_path, "of float16, but")


def test_other_weights(folder: Path, tmp_path: Path) -> None:
    weights = read_tensors(folder / "model.safetensors")
    weights["embedding.weight"] *= 1.5
    refused(folder, weights, tmp_path, "differ by")


def test_weights_that_are_no_numbers(folder: Path, tmp_path: Path) -> None:
    weights = read_tensors(folder / "model.safetensors")
    weights["embedding.weight"][:] = torch.nan
    refused(folder, weights, tmp_path, "differ by inf")


@pytest.mark.parametrize("cut", [0, 4, 100, -1])
def test_a_cut_file(folder: Path, tmp_path: Path, cut: int) -> None:
    content = (folder / "model.safetensors").read_bytes()[:cut]
    refused(folder, content, tmp_path, "is no whole safetensors file")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_by_another_name_is_not_opened(
    folder: Path, tmp_path: Path, zipped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    trap = tmp_path / "trap"
    torch.save({"weights": Shout()}, trap, _use_new_zipfile_serialization=zipped)
    (tmp_path / "copy").mkdir()
    refused(folder, trap.read_bytes(), tmp_path / "copy", "not a safetensors file")
    assert "executed" not in capsys.readouterr().out


class Shout:
    """Says so when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("executed",)


def test_a_pickle_in_torchs_own_form_is_not_executed(
    runs: dict[str, RunFolder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export_to(runs["classification"], "torch", tmp_path / "out")
    torch.save({"weights": Shout()}, tmp_path / "out" / "weights.pt")
    seal(tmp_path / "out")
    with pytest.raises(DataError, match="cannot read the checkpoint"):
        verify_export(tmp_path / "out")
    assert "executed" not in capsys.readouterr().out


def test_modeling_of_a_folder_is_never_run(folder: Path, tmp_path: Path) -> None:
    copied(folder, tmp_path)
    (tmp_path / "modeling.py").write_text("raise SystemExit('executed')\n")
    with pytest.raises(DataError, match=r"modeling\.py was changed"):
        verify_export(tmp_path)
    seal(tmp_path)
    assert verify_export(tmp_path).difference < 1e-4
