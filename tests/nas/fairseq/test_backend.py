"""`nas retrain --backend fairseq` and `nas fairseq import`, as far as they work without fairseq."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from typer.testing import CliRunner, Result

from nas.console.app import app
from nas.fairseq import backend as fairseq_backend
from nas.fairseq.backend import check_untrained, find_program, import_checkpoints, run_job
from nas.fairseq.checkpoint import write_checkpoint
from nas.fairseq.data import DataBin, open_data_bin
from nas.fairseq.folder import BEST, SETTINGS, prepare_job
from nas.fairseq.plugin import USER_DIR
from nas.run.folder import RunFolder
from nas.stages.retrain import retrain
from search_spaces.errors import (
    DataError,
    DivergedError,
    NasError,
    RunConflictError,
    UsageError,
)
from supernet.blueprint import Blueprint
from supernet.building import build_network
from supernet.data.synthetic import SYNTHETIC_PAIRS
from supernet.tasks.translation import TranslationTask
from supernet.training.checkpoint import load
from tests.support import trained_cases
from tests.support.data_bin_cases import small_splits, write_data_bin
from tests.support.pipeline_cases import tree
from tests.support.trained_cases import LANGUAGE, TRANSLATION, begun, networks, with_front

small_corpus = trained_cases.small_corpus


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = begun(tmp_path / "run")
    with_front(folder)
    folder.finish("declare", "digest", ["data.json"], 1.0)
    return folder


def checkpoint(
    run: RunFolder, name: str = "c.pt", number: int = 0, seed: int = 0, broken: bool = False
) -> Path:
    space, network = run.spec.space, networks(run.spec.space, 3)[number]
    torch.manual_seed(seed)
    model = build_network(space.model, "translation", network).network
    if broken:
        torch.nn.init.constant_(next(model.parameters()), torch.nan)
    blueprint = Blueprint("translation", space.model, network)
    write_checkpoint(run.path.parent / name, blueprint, model.state_dict(), ("en", "de"))
    return run.path.parent / name


def nas(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def options(script: Path) -> dict[str, str]:
    command = script.read_text("utf-8").split("exec ")[1].replace("\\\n", " ")
    words = shlex.split(command)[:-1]  # the last stands for further ones
    return dict(zip(words[2::2], words[3::2], strict=True))


# -- the folder -----------------------------------------------------------------------------------


def test_the_command_has_the_papers_settings(run: RunFolder) -> None:
    given = options(prepare_job(run, "best").path / "train.sh")
    assert {name: given[f"--{name}"] for name, _ in SETTINGS} == dict(SETTINGS)
    assert given["--arch"] == "nas_transformer" and given["--lr-scheduler"] == "inverse_sqrt"
    assert given["--max-update"] == "200000" and given["--required-batch-size-multiple"] == "1"


def test_the_data_are_written_in_fairseqs_form(run: RunFolder) -> None:
    folder = prepare_job(run, "best").path / "data-bin"
    data = open_data_bin(DataBin.find(folder, run.spec.space), 64)
    made = SYNTHETIC_PAIRS.open(0)
    assert data.source_tokenizer is data.target_tokenizer and made.source_tokenizer is not None
    assert data.source_tokenizer.symbols == made.source_tokenizer.symbols
    for split in ("train", "valid"):
        found, own = getattr(data, split), getattr(made, split)
        assert (found.source.joined() == own.source.joined()).all()
        assert (found.target.joined() == own.target.joined()).all()
    assert not list(folder.glob("test*"))


def test_data_of_fairseqs_stay_where_they_are(tmp_path: Path) -> None:
    data = write_data_bin(tmp_path / "bin", small_splits())
    folder = begun(tmp_path / "run", data=str(data), dataset="bin")
    with_front(folder)
    path = prepare_job(folder, "best").path
    assert str(data) in (path / "train.sh").read_text() and not (path / "data-bin").exists()
    assert options(path / "train.sh")["--source-lang"] == "en"


def test_a_second_time_keeps_what_was_trained(run: RunFolder) -> None:
    path = prepare_job(run, "best").path
    (path / "checkpoints").mkdir()
    (path / "train.sh").unlink()
    before = (path / "data-bin" / "dict.source.txt").stat().st_mtime_ns
    assert prepare_job(run, "best").path == path
    assert (path / "checkpoints").is_dir() and os.access(path / "train.sh", os.X_OK)
    assert (path / "data-bin" / "dict.source.txt").stat().st_mtime_ns == before


def test_the_plugin_brings_all_it_needs_along(run: RunFolder) -> None:
    lib = prepare_job(run, "best").path / USER_DIR.name / "lib"
    code = (
        "import sys; from nas.fairseq import checkpoint as own; "
        "from supernet import building; import supernet.decoding_state; "
        f"assert own.__file__.startswith({str(lib)!r}), own.__file__"
    )
    # In isolated mode neither this folder nor PYTHONPATH leads to the packages here.
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(lib)!r}); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=lib)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (lib / "nas" / "fairseq").glob("*.py")} == {
        "__init__.py",
        "checkpoint.py",
    }
    assert not (lib / "nas" / "run").exists() and (lib / "NOTICE").exists()


def test_the_command_that_takes_the_weights_works_from_any_folder(tmp_path: Path) -> None:
    folder = begun(tmp_path / "my run")
    with_front(folder)
    job = prepare_job(folder, "best")
    (told,) = [
        shlex.split(line)
        for line in (job.path / "README.md").read_text("utf-8").splitlines()
        if line.startswith("    nas ")
    ]
    assert told[:3] == ["nas", "fairseq", "import"]
    assert [Path(one) for one in told[3:]] == [folder.path, job.path / BEST]


def test_other_tasks_are_refused(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", LANGUAGE)
    with_front(folder)
    for work in (lambda: prepare_job(folder, "best"), lambda: [*import_checkpoints(folder, [])]):
        with pytest.raises(UsageError, match="is a run for language modelling"):
            work()
    assert not (folder.path / "fairseq").exists()


# -- running --------------------------------------------------------------------------------------


def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Something in place of fairseq-train."""
    (tmp_path / "bin").mkdir()
    file = tmp_path / "bin" / "fairseq-train"
    file.write_text(f"#!/usr/bin/env bash\n{text}\n")
    file.chmod(0o755)
    monkeypatch.setattr(fairseq_backend, "find_program", lambda _: file)


def test_the_script_is_run_with_further_options(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = 'printf "%s\\n" "$@"; mkdir checkpoints; touch checkpoints/checkpoint_best.pt'
    program(tmp_path, monkeypatch, told)
    job = prepare_job(run, "best")
    assert run_job(job, ["--max-update", "3"]) == job.path / "checkpoints/checkpoint_best.pt"
    words = (job.path / "train.log").read_text().splitlines()
    assert words[-2:] == ["--max-update", "3"] and "(0.9, 0.998)" in words


@pytest.mark.parametrize(("text", "code"), [("echo broken; exit 3", 3), ("echo broken", 0)])
def test_a_failure_shows_the_end_of_the_log(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int
) -> None:
    program(tmp_path, monkeypatch, text)
    with pytest.raises(NasError, match=rf"(?s)ended with {code} .*train\.log ends so:\n  broken"):
        run_job(prepare_job(run, "best"), [])


def test_two_do_not_train_in_one_folder(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, monkeypatch, "exit 1")
    job = prepare_job(run, "best")
    with fairseq_backend._alone(job.path), pytest.raises(RunConflictError, match="another process"):
        run_job(job, [])


def test_weights_of_another_training_are_not_lost(run: RunFolder) -> None:
    job = prepare_job(run, "best")
    check_untrained(run, job)
    run.write_json(f"retrained/{job.entry.id}/result.json", {})
    with pytest.raises(UsageError, match="has weights of the network"):
        check_untrained(run, job)
    (job.path / "checkpoints").mkdir()
    (job.path / "checkpoints" / "checkpoint_best.pt").touch()
    check_untrained(run, job)


def test_without_fairseq(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"pip install 'nas-service\[fairseq\]'"):
        find_program("fairseq-train")
    (tmp_path / "fairseq-train").touch()
    assert find_program("fairseq-train") == tmp_path / "fairseq-train"


# -- weights of fairseq's in a run ----------------------------------------------------------------


def test_imported_weights_are_as_good_as_retrained_ones(run: RunFolder) -> None:
    events = list(import_checkpoints(run, [checkpoint(run)]))
    network = networks(run.spec.space, 1)[0]
    assert any("trained by fairseq for 0 updates" in str(event) for event in events)
    result = run.read_json(f"retrained/{network.id}/result.json")
    assert result["id"] == network.id and result["epochs"] == 1 and "test_bleu" in result
    before = load(run.path / "retrained" / network.id / "weights.pt")["model"]
    assert any(type(e).__name__ == "StageSkipped" for e in retrain(run, network.id))
    after = load(run.path / "retrained" / network.id / "weights.pt")["model"]
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_several_are_averaged(run: RunFolder) -> None:
    files = [checkpoint(run, f"{seed}.pt", seed=seed) for seed in (1, 2)]
    list(import_checkpoints(run, files))
    network = networks(run.spec.space, 1)[0]
    mean = load(run.path / "retrained" / network.id / "weights.pt")["model"]
    parts = [load(file)["model"]["network.tables.0.weight"] for file in files]
    torch.testing.assert_close(mean["tables.0.weight"], (parts[0] + parts[1]) / 2)


def test_weights_are_replaced_only_when_asked(run: RunFolder) -> None:
    list(import_checkpoints(run, [checkpoint(run)]))
    other = checkpoint(run, "other.pt", seed=5)
    with pytest.raises(UsageError, match="has weights of the network .* already; --replace"):
        list(import_checkpoints(run, [other]))
    list(import_checkpoints(run, [other], replaces=True))
    network = networks(run.spec.space, 1)[0]
    found = load(run.path / "retrained" / network.id / "weights.pt")["model"]["tables.0.weight"]
    assert torch.equal(found, load(other)["model"]["network.tables.0.weight"])


def test_weights_that_cannot_be_scored_replace_nothing(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(import_checkpoints(run, [checkpoint(run)]))
    before = tree(run.path / "retrained")
    broken = checkpoint(run, "broken.pt", broken=True)
    with pytest.raises(DivergedError, match="cannot translate"):
        list(import_checkpoints(run, [broken], replaces=True))
    with monkeypatch.context() as patch:
        patch.setattr(TranslationTask, "open_test", stopped)
        with pytest.raises(KeyboardInterrupt):
            list(import_checkpoints(run, [checkpoint(run, "other.pt", seed=5)], replaces=True))
    assert tree(run.path / "retrained") == before
    network = networks(run.spec.space, 1)[0]
    assert any(type(e).__name__ == "StageSkipped" for e in retrain(run, network.id))


def test_what_cannot_be_scored_is_no_training_that_was_begun(run: RunFolder) -> None:
    with pytest.raises(DivergedError, match="cannot translate"):
        list(import_checkpoints(run, [checkpoint(run, broken=True)]))
    assert not (run.path / "retrained").exists() and not run.found("stages/retrain-*")


def stopped(_: object) -> NoReturn:
    raise KeyboardInterrupt


def test_weights_that_do_not_belong_to_the_run(run: RunFolder, tmp_path: Path) -> None:
    files = [checkpoint(run, f"{number}.pt", number) for number in (0, 1)]
    with pytest.raises(DataError, match="only checkpoints of one can be averaged"):
        list(import_checkpoints(run, files))
    wide = TRANSLATION.replace("max_length = 64", "max_length = 65")
    other = begun(tmp_path / "other", wide)
    with_front(other)
    with pytest.raises(DataError, match="trained with other settings"):
        list(import_checkpoints(other, files[:1]))
    assert not (run.path / "retrained").exists() and not (other.path / "retrained").exists()


# -- commands -------------------------------------------------------------------------------------


def test_the_command_writes_the_folder_and_says_what_is_next(run: RunFolder) -> None:
    done = nas("retrain", str(run.path), "--backend", "fairseq")
    assert done.exit_code == 0 and "train.sh" in done.stdout
    assert len(list(run.path.glob("fairseq/*/train.sh"))) == 1


def test_the_command_takes_weights_in(run: RunFolder) -> None:
    done = nas("fairseq", "import", str(run.path), str(checkpoint(run)))
    assert done.exit_code == 0 and "Run " in done.stdout
    again = nas("fairseq", "import", str(run.path), str(checkpoint(run)))
    assert again.exit_code != 0 and "--replace" in again.stderr


def test_the_command_tells_the_score_of_the_network_that_it_took(run: RunFolder) -> None:
    other = networks(run.spec.space, 3)[1]
    done = nas("fairseq", "import", str(run.path), str(checkpoint(run, number=1)), "--quiet")
    assert f"Trained {other.id}, test " in done.stdout


def test_with_json_an_import_ends_with_its_result(run: RunFolder) -> None:
    done = nas("fairseq", "import", str(run.path), str(checkpoint(run)), "--json")
    assert ends_with_result(done) == [networks(run.spec.space, 3)[0].id]


def test_with_json_a_training_of_fairseqs_is_json_and_ends_with_its_result(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = shlex.quote(str(checkpoint(run)))
    program(tmp_path, monkeypatch, f"mkdir checkpoints; cp {weights} {BEST}")
    done = nas("retrain", str(run.path), "--backend", "fairseq", "--run", "--json")
    assert ends_with_result(done) == [networks(run.spec.space, 3)[0].id]


def ends_with_result(done: Result) -> list[str]:
    """The networks that the result tells of, which has to be the last of lines of JSON."""
    *events, last = map(json.loads, done.stdout.splitlines())
    assert done.exit_code == 0 and events and last["event"] == "Result"
    return [one["id"] for one in last["retrained"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run"], "--run needs --backend fairseq"),
        (["--fairseq-option", "--fp16"], "--fairseq-option needs --backend fairseq"),
        (["--backend", "fairseq", "--fairseq-option", "x"], "--fairseq-option needs --run"),
        (["--backend", "fairseq", "--json"], "--json with --backend fairseq needs --run"),
        (["--backend", "fairseq", "--pick", "abcd1234"], "abcd1234"),
        (["--backend", "tensorflow"], "'tensorflow' is not one of"),
    ],
)
def test_wrong_requests(run: RunFolder, arguments: list[str], message: str) -> None:
    done = nas("retrain", str(run.path), *arguments)
    assert done.exit_code == 2 and message in done.stderr
    assert not (run.path / "fairseq").exists()


def test_the_folder_of_the_plugin_is_printed() -> None:
    done = nas("fairseq", "user-dir")
    assert Path(done.stdout.strip()) == USER_DIR and (USER_DIR / "__init__.py").is_file()
    assert json.dumps(done.stdout).count("\\n") == 1
