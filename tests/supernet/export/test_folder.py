"""What all formats of exports have in common: the folder, the check at its end, what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from nas.results.export import verify_export
from nas.results.networks import open_inherited
from nas.run.folder import RunFolder, checksum
from search_spaces.errors import DamagedRunError, DataError, UnknownNameError, UsageError
from search_spaces.files import building_folder
from supernet.export.contents import ReferenceOutputs, read_reference
from supernet.export.weights import read_tensors, write_tensors
from supernet.training.checkpoint import save
from tests.support.export_cases import arch_of, export_to, know_plain, run_of, seal

pytestmark = pytest.mark.export

TASKS = ["translation", "language_modelling", "classification"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    return {task: run_of(tmp_path_factory.mktemp(task) / "run", task) for task in TASKS}


@pytest.fixture
def run(runs: dict[str, RunFolder], monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    know_plain(monkeypatch)
    return runs["translation"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def change_json(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.parametrize("task", TASKS)
def test_an_export_says_what_it_is(
    runs: dict[str, RunFolder], task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_plain(monkeypatch)
    exported = export_to(runs[task], "plain", tmp_path / "out")
    assert exported.facts["weights"] == "retrained"
    assert {"README.md", "architecture.json", "reading.json"} <= set(names(tmp_path / "out"))
    assert verify_export(tmp_path / "out").difference == exported.facts["difference"]


def test_inherited_weights_are_marked(run: RunFolder, tmp_path: Path) -> None:
    out = tmp_path / "out"
    exported = export_to(run, "plain", out, arch=arch_of(run), inherited=True)
    assert exported.facts["weights"] == "inherited"
    assert "Inherited from the supernet" in (out / "README.md").read_text()


def test_retrained_weights_are_not(run: RunFolder, tmp_path: Path) -> None:
    export_to(run, "plain", tmp_path / "out")
    assert "Inherited" not in (tmp_path / "out" / "README.md").read_text()


def test_the_usual_place_is_in_the_run(run: RunFolder) -> None:
    exported = export_to(run, "plain", force=True)
    assert exported.path == run.path / "export" / arch_of(run) / "plain"


def test_other_outputs_leave_nothing_behind(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="outputs of the wrong export differ by"):
        export_to(run, "wrong", tmp_path / "out")
    assert names(tmp_path) == []


def test_a_failure_keeps_the_export_before(run: RunFolder, tmp_path: Path) -> None:
    export_to(run, "plain", tmp_path / "out")
    with pytest.raises(DataError):
        export_to(run, "wrong", tmp_path / "out", force=True)
    assert verify_export(tmp_path / "out").facts["format"] == "plain"
    assert names(tmp_path) == ["out"]


def test_what_is_there_is_replaced_only_by_force(run: RunFolder, tmp_path: Path) -> None:
    export_to(run, "plain", tmp_path / "out")
    with pytest.raises(UsageError, match="--force replaces it"):
        export_to(run, "plain", tmp_path / "out")
    export_to(run, "plain", tmp_path / "out", force=True)


def test_what_is_no_export_is_never_replaced(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="is no export"):
        export_to(run, "plain", tmp_path, force=True)
    assert names(tmp_path) == ["mine.txt"]


@pytest.mark.parametrize("more", [{}, {"checksums.json": {"sha256": {"index.html": "0"}}}])
def test_an_export_json_of_others_is_no_export(
    run: RunFolder, tmp_path: Path, more: dict[str, object]
) -> None:
    files = {"export.json": {"format": "site", "id": 3}, **more}
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(UsageError, match="is no export"):
        export_to(run, "plain", tmp_path, force=True)
    assert names(tmp_path) == sorted(files)


def test_own_files_in_an_export_are_never_replaced(run: RunFolder, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_to(run, "plain", out)
    for name in ("__pycache__/modeling.cpython-311.pyc", "picture.png", "mine/checksums.json"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("mine")
    for own in ("mine/checksums.json", "picture.png"):
        with pytest.raises(UsageError, match=f"out/{own} is no file of the export"):
            export_to(run, "plain", out, force=True)
        assert (out / own).read_text() == "mine"
        (out / own).unlink()
    export_to(run, "plain", out, force=True)  # what Python keeps is nobody's
    assert not {"__pycache__", "mine"} & set(names(out))


def test_leftovers_of_killed_processes_go(run: RunFolder, tmp_path: Path) -> None:
    with building_folder(tmp_path / "out") as folder:
        begin = folder.name.removesuffix(f"{os.getpid()}.tmp")
    others = [f".out.else-{'9' * 9}.tmp", f"{begin}{os.getppid()}.tmp"]  # of a host, and alive
    for name in (*others, f"{begin}{'9' * 9}.tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "out").rmdir()
    export_to(run, "plain", tmp_path / "out")
    assert names(tmp_path) == sorted([*others, "out"])


def test_an_unknown_format_is_refused(run: RunFolder) -> None:
    with pytest.raises(UnknownNameError, match="there are safetensors"):
        export_to(run, "gguf")


@pytest.mark.parametrize("given", [None, "nothing"])
def test_inherited_needs_a_network_of_the_run(run: RunFolder, given: str | None) -> None:
    with pytest.raises(UsageError, match="measured"):
        export_to(run, "plain", arch=given, inherited=True)


def test_a_file_that_is_missing_is_named(run: RunFolder, tmp_path: Path) -> None:
    export_to(run, "plain", tmp_path / "out")
    for name in ("plain.safetensors", "README.md", "checksums.json"):
        content = (tmp_path / "out" / name).read_bytes()
        (tmp_path / "out" / name).unlink()
        error = UsageError if name == "checksums.json" else DataError  # without it, it is no export
        with pytest.raises(error, match=name):
            verify_export(tmp_path / "out")
        (tmp_path / "out" / name).write_bytes(content)


def test_a_changed_file_is_named(run: RunFolder, tmp_path: Path) -> None:
    export_to(run, "plain", tmp_path / "out")
    change_json(tmp_path / "out" / "architecture.json", params=3)
    with pytest.raises(DataError, match=r"architecture\.json was changed"):
        verify_export(tmp_path / "out")


def test_only_exports_are_verified(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        verify_export(tmp_path / "nothing")
    with pytest.raises(UsageError, match="is no export"):
        verify_export(tmp_path)


def test_checksums_of_other_places_are_refused(run: RunFolder, tmp_path: Path) -> None:
    export_to(run, "plain", tmp_path / "out")
    (tmp_path / "mine").write_text("mine")
    sums = {"../mine": checksum(tmp_path / "mine")}
    change_json(tmp_path / "out" / "checksums.json", sha256=sums)
    with pytest.raises(DataError, match="lies outside of the folder"):
        verify_export(tmp_path / "out")


def test_checksums_that_are_none(run: RunFolder, tmp_path: Path) -> None:
    export_to(run, "plain", tmp_path / "out")
    for content in ("", "[]", "{}", '{"sha256": []}', '{"sha256": {}}', "[" * 9999):
        (tmp_path / "out" / "checksums.json").write_text(content)
        with pytest.raises(DataError, match=r"checksums\.json"):
            verify_export(tmp_path / "out")


def test_a_folder_of_a_format_there_is_not(run: RunFolder, tmp_path: Path) -> None:
    export_to(run, "plain", tmp_path / "out")
    for form in ("gguf", 3, None):
        change_json(tmp_path / "out" / "export.json", format=form)
        seal(tmp_path / "out")
        with pytest.raises(UnknownNameError, match="there is no format"):
            verify_export(tmp_path / "out")


def test_a_record_that_is_none(run: RunFolder, tmp_path: Path) -> None:
    export_to(run, "plain", tmp_path / "out")
    write_tensors(tmp_path / "out" / "check.safetensors", {"input.source": torch.zeros(1)})
    seal(tmp_path / "out")
    with pytest.raises(DataError, match="no recorded inputs and outputs"):
        verify_export(tmp_path / "out")


def test_a_record_of_another_task(run: RunFolder, tmp_path: Path) -> None:
    export_to(run, "plain", tmp_path / "out")
    record = {"input.tokens": torch.ones(1, 3), "output.logits": torch.zeros(1, 3, 9)}
    write_tensors(tmp_path / "out" / "check.safetensors", record)
    seal(tmp_path / "out")
    with pytest.raises(DataError, match="is of another task"):
        verify_export(tmp_path / "out")


@pytest.mark.parametrize("token", [-1, 10**6])
def test_a_record_of_tokens_there_are_not(run: RunFolder, tmp_path: Path, token: int) -> None:
    export_to(run, "plain", tmp_path / "out")
    record = read_tensors(tmp_path / "out" / "check.safetensors")
    record["input.target"][0, 0] = token
    write_tensors(tmp_path / "out" / "check.safetensors", record)
    seal(tmp_path / "out")
    with pytest.raises(DataError, match="recorded inputs cannot be computed"):
        verify_export(tmp_path / "out")


def test_a_supernet_of_another_space(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run")
    save(folder.path / "supernet" / "last.pt", {"weights": {"embedding": torch.zeros(2)}})
    folder.finish("supernet", "digest", ["supernet/last.pt"], 1.0)
    with pytest.raises(DamagedRunError, match="is no supernet of this run's space"):
        export_to(folder, "safetensors", arch=arch_of(folder), inherited=True)


def test_inherited_outputs_are_those_of_the_supernet(run: RunFolder, tmp_path: Path) -> None:
    """The record comes from the supernet itself, not from what was cut out of it."""
    exported = export_to(run, "plain", tmp_path / "out", arch=arch_of(run), inherited=True)
    supernet = open_inherited(run, arch_of(run), "cpu")
    record = read_reference(tmp_path / "out" / "check.safetensors")
    with torch.inference_mode():
        logits = supernet.model(*record.arguments, supernet.architecture)
    assert torch.equal(logits, record.outputs["logits"])
    assert exported.facts["difference"] < 1e-4


def test_numbers_that_are_none_are_infinitely_far() -> None:
    record = ReferenceOutputs({}, {"logits": torch.zeros(2)})
    assert record.difference({"logits": torch.tensor([0.0, torch.nan])}) == float("inf")
    assert record.difference({"logits": torch.tensor([0.0, -0.5])}) == 0.5
    with pytest.raises(DataError, match="expects logits of the shape"):
        record.difference({"logits": torch.zeros(3)})
    with pytest.raises(DataError, match="found nothing"):
        record.difference({})
