"""`nas export` and `nas verify`: what they print, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nas.console.app import app
from nas.run.folder import RunFolder
from tests.support import prepare_cases
from tests.support.export_cases import arch_of, know_plain, run_of
from tests.support.pipeline_cases import tree
from tests.support.trained_cases import begun, train, trained, with_front

pytestmark = pytest.mark.export


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_of(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def run(made: RunFolder, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    know_plain(monkeypatch)
    return made


def nas(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_what_was_written_is_told(run: RunFolder, tmp_path: Path) -> None:
    done = nas("export", run.path, "--format", "plain", "--out", tmp_path / "out")
    assert done.exit_code == 0
    told = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert told["path"] == str(tmp_path / "out") and told["id"] == arch_of(run)
    assert told["weights"] == "retrained" and float(told["difference"]) < 1e-4


def test_json_holds_the_facts(run: RunFolder, tmp_path: Path) -> None:
    done = nas("export", run.path, "--format", "plain", "--out", tmp_path / "out", "--json")
    facts = json.loads((tmp_path / "out" / "export.json").read_text())
    assert json.loads(done.stdout) == {"path": str(tmp_path / "out"), **facts}


def test_nothing_else_in_the_run_is_touched(run: RunFolder, tmp_path: Path) -> None:
    before = tree(run.path)
    assert nas("export", run.path, "--format", "plain", "--out", tmp_path / "out").exit_code == 0
    assert tree(run.path) == before


def test_a_good_folder_is_verified(run: RunFolder, tmp_path: Path) -> None:
    nas("export", run.path, "--format", "plain", "--out", tmp_path / "out")
    done = nas("verify", tmp_path / "out")
    assert done.exit_code == 0 and "difference" in done.stdout
    assert json.loads(nas("verify", tmp_path / "out", "--json").stdout)["files"] == 7


def test_a_changed_folder_is_not(run: RunFolder, tmp_path: Path) -> None:
    nas("export", run.path, "--format", "plain", "--out", tmp_path / "out")
    (tmp_path / "out" / "README.md").write_text("better than it is")
    done = nas("verify", tmp_path / "out")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "README.md was changed" in done.stderr and "Traceback" not in done.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--format", "gguf"], "there is no format 'gguf'"),
        ([], "Missing option '--format'"),
        (["--format", "plain", "--arch", "zzzz"], "is the id of no network"),
        (["--format", "plain", "--inherited"], "--inherited needs --arch ID"),
        (["--format", "plain", "--inherited", "--arch", "zz"], "the nearest id is"),
        (["--format", "plain", "--data", "nowhere"], "--data nowhere does not exist"),
    ],
)
def test_what_is_refused(run: RunFolder, options: list[str], words: str, tmp_path: Path) -> None:
    done = nas("export", run.path, "--out", tmp_path / "out", *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr and "Traceback" not in done.output
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    done = nas("verify", tmp_path / "nothing")
    assert done.exit_code == 2 and "there is no folder" in done.stderr
    done = nas("verify", tmp_path)
    assert done.exit_code == 2 and "is no export made by nas export" in done.stderr


def test_nothing_is_trained_yet(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    with_front(folder)
    done = nas("export", folder.path, "--format", "safetensors")
    assert done.exit_code == 2 and "no network of" in done.stderr
    chosen = arch_of(folder)[:4]
    done = nas("export", folder.path, "--format", "safetensors", "--inherited", "--arch", chosen)
    assert done.exit_code == 2 and "has no trained supernet yet" in done.stderr


def test_a_supernet_that_a_service_has_deleted(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run")
    (folder.path / "supernet/last.pt").unlink()
    chosen = arch_of(folder)
    done = nas("export", folder.path, "--format", "safetensors", "--inherited", "--arch", chosen)
    told = " ".join(done.stderr.split())
    assert done.exit_code == 2 and "is gone, which a service deletes to make room" in told


def test_of_two_networks_the_winner_is_exported_or_one_is_named(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run")
    first, second = arch_of(folder), train(folder, 1)
    done = nas("export", folder.path, "--format", "safetensors")
    assert done.exit_code == 0 and first in done.output and second not in done.output
    (folder.path / "pareto.json").unlink()
    done = nas("export", folder.path, "--format", "safetensors")
    assert done.exit_code == 2 and second in done.stderr


@pytest.mark.parametrize("inherited", [False, True])
def test_damaged_weights_of_the_run(tmp_path: Path, inherited: bool) -> None:
    folder = run_of(tmp_path / "run")
    name = "supernet/last.pt" if inherited else f"retrained/{arch_of(folder)}/weights.pt"
    (folder.path / name).write_bytes(b"not weights")
    more = ["--inherited", "--arch", arch_of(folder)] if inherited else []
    done = nas("export", folder.path, "--format", "safetensors", *more)
    assert done.exit_code == 1 and "is damaged" in done.stderr
    assert not (folder.path / "export").exists()


def test_other_data_than_those_of_the_run(tmp_path: Path) -> None:
    prepare_cases.write_pairs(tmp_path)
    prepare_cases.run(tmp_path, out=tmp_path / "other")
    folder = trained(tmp_path / "run")
    done = nas("export", folder.path, "--format", "safetensors", "--data", tmp_path / "other")
    assert done.exit_code == 2 and "does not hold the data that this run was made" in done.stderr
