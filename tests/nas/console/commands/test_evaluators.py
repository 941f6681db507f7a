"""`nas search --evaluator`: the examples of the guide, names, resuming and refusals."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner, Result

from nas.console.app import app
from nas.request.presets import setting_names, trained_here
from nas.run.evaluators.opening import EvaluatorName
from nas.run.evaluators.table import TableEvaluator
from nas.run.folder import RunFolder
from search_spaces.errors import UsageError
from search_spaces.genes import parse_genes
from search_spaces.variation import enumerate_all
from tests.support.external_cases import CALLS, GENES, NUMBERS, asked_twice, calls, loss, ms
from tests.support.pipeline_cases import ROOT

pytestmark = pytest.mark.usefixtures("few_regressors")

PAGE = ROOT / "docs" / "guide" / "evaluators.md"
SPACE = parse_genes(GENES, "mine.toml")
RIG = "tests.support.external_cases:Good"
SETTINGS = [part for name, value in NUMBERS.items() for part in ("--set", f"{name}={value}")]


def nas(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def said(result: Result) -> str:
    return " ".join(result.output.split())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a space of genes, in which commands are given."""
    (tmp_path / "mine.toml").write_text(GENES, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def search(evaluator: str, *more: str, objectives: str = "quality,ms") -> Result:
    given = ["--evaluator", evaluator, "--objectives", objectives, "--out", "run", *SETTINGS]
    return nas("search", "--space", "mine.toml", *given, *more)


# -- the guide ------------------------------------------------------------------------------------


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "example",
    [
        1,
        pytest.param(0, marks=SLOW),
        pytest.param(2, marks=SLOW),
        pytest.param(3, marks=[SLOW, pytest.mark.ray]),
    ],
)
def test_the_examples_of_the_guide_run(example: int, here: Path) -> None:
    (space,) = blocks("toml")
    (here / "mine.toml").write_text(space, "utf-8")
    files = ("make_table.py", "measure.py", "rig.py")
    for name, text in zip(files, blocks("python"), strict=False):
        assert f"`{name}`" in PAGE.read_text("utf-8")
        (here / name).write_text(text, "utf-8")
    for line in blocks("sh")[example].splitlines():
        program, *arguments = shlex.split(line)
        if program == "nas":
            result = nas(*arguments)
            assert result.exit_code == 0, result.output
        else:
            subprocess.run([sys.executable, *arguments], check=True)
    (run,) = (here / "runs").iterdir()
    front = json.loads((run / "pareto.json").read_text("utf-8"))["front"]
    assert front and (run / "report.html").exists()
    if example == 1:
        lines = RunFolder.open(run).read_journal("observations.jsonl")
        reasons = {line["failed"]["reason"] for line in lines if "failed" in line}
        assert len(reasons) == 1 and reasons.pop().endswith("into the memory of the rig")


def test_the_example_in_python_runs(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, rig, script = blocks("python")
    (space,) = blocks("toml")
    for name, text in (("mine.toml", space), ("rig.py", rig), ("search.py", script)):
        (here / name).write_text(text, "utf-8")
    monkeypatch.syspath_prepend(here)
    monkeypatch.delitem(sys.modules, "rig", raising=False)
    runpy.run_path("search.py", run_name="__main__")
    told = capsys.readouterr().out
    assert "norm" in told and "parameters" in told


def test_how_long_an_evaluator_takes_is_not_told_and_that_is_said(here: Path) -> None:
    words = said(search(RIG))
    assert "no duration is told: only the evaluator knows how long its answers take" in words


def test_what_only_an_evaluator_knows_cannot_be_exported_and_no_training_is_advised(
    here: Path,
) -> None:
    assert search(RIG).exit_code == 0
    refused = nas("export", "run", "--format", "torch")
    assert refused.exit_code == 2 and "known to the evaluator of its search alone" in said(refused)
    assert "nas retrain" not in said(refused)


# -- names ----------------------------------------------------------------------------------------


def test_names_are_taken_apart() -> None:
    read = EvaluatorName.read
    assert read("a.b:C") == EvaluatorName("python", "a.b:C")
    assert read("table:x.csv") == EvaluatorName("table", "x.csv")
    assert read("table:x.csv:loss") == EvaluatorName("table", "x.csv", "loss")
    assert read("table:x.npz:-acc") == EvaluatorName("table", "x.npz", "acc", maximise=True)
    assert read("command:./a 'b c'").words() == ["./a", "b c"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nonsense", "--evaluator takes package.module:Name"),
        (":Name", "--evaluator takes"),
        ("table:", "--evaluator takes"),
        ("table:x.csv:-", "--evaluator takes"),
        ("command: ", "--evaluator takes"),
        ("command:a 'b", "No closing quotation"),
        ("table:none.csv:loss", "there is no such file"),
        ("command:none-such-program", "there is no program 'none-such-program'"),
    ],
)
def test_wrong_names_are_told(here: Path, name: str, words: str) -> None:
    result = search(name)
    assert result.exit_code == 2 and words in said(result)
    assert not (here / "run").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be imported: No module named 'absent_rig'"),
        ("1 / 0", "cannot be imported: ZeroDivisionError"),
        ("Other = 1", "has no 'Rig'"),
        ("class Rig: pass", "has no method `evaluate`"),
        ("def Rig(): raise OSError('no rig')", "cannot be made: OSError: no rig"),
    ],
)
def test_modules_that_hold_no_evaluator(here: Path, text: str | None, words: str) -> None:
    module = "absent_rig" if text is None else f"rig_{abs(hash(text))}"
    if text is not None:
        (here / f"{module}.py").write_text(text, "utf-8")
    result = search(f"{module}:Rig")
    assert result.exit_code == 2 and words in said(result)
    assert not (here / "run").exists()  # nothing stands in the way of the mended request


def test_a_table_of_which_more_is_better(here: Path) -> None:
    networks = [network.to_json() for network in SPACE.decode(enumerate_all(SPACE))]
    columns: dict[str, Any] = {
        name: [network.get(name, 0) for network in networks]
        for name in ("width", "layers", "norm", "eps")
    }
    for layer in range(2):
        columns[f"ratio.{layer}"] = [[*network["ratio"], 0][layer] for network in networks]
    columns |= {"score": [-loss(network) for network in networks], "ms": list(map(ms, networks))}
    pandas.DataFrame(columns).to_csv(here / "table.csv")
    result = search("table:table.csv:-score")
    assert result.exit_code == 0, result.output
    assert "ms told of any network" in result.output
    for entry in json.loads((here / "run" / "pareto.json").read_text("utf-8"))["front"]:
        assert entry["measured"]["quality"] == pytest.approx(loss(entry["architecture"]))
    known = TableEvaluator(SPACE, here / "table.csv", "score", ["ms"])
    assert known.costs(networks[:2]) == {"ms": [ms(one) for one in networks[:2]]}
    pandas.DataFrame(columns).iloc[:100].to_csv(here / "table.csv")
    assert TableEvaluator(SPACE, here / "table.csv", "score", ["ms"]).costs(networks) == {}
    (here / "run" / "stages" / "verify.json").unlink()
    resumed = nas("resume", "run")
    assert resumed.exit_code == 2 and "its digest was" in said(resumed)
    assert "there is no column 'energy'" in said(
        search("table:table.csv:score", "--limit", "energy=2", "--out", "other")
    )


# -- resuming -------------------------------------------------------------------------------------

DEADLY = """
import os, signal
from tests.support.external_cases import Good

class Deadly(Good):
    def _told(self, network):
        if os.environ["DIE_AT"] == str(len(self.asked)):
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._told(network)
"""


def test_a_killed_process_goes_on_and_asks_for_nothing_twice(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "deadly.py").write_text(DEADLY, "utf-8")
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    told = here / "calls.jsonl"
    base = {**os.environ, "PYTHONPATH": paths, CALLS: str(told)}
    command = [sys.executable, "-m", "nas.console.app", "search", "--space", "mine.toml"]
    command += ["--evaluator", "deadly:Deadly", "--objectives", "quality,ms", "--out", "run"]
    environment = {**base, "DIE_AT": "7"}
    done = subprocess.run([*command, *SETTINGS, "-q"], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    monkeypatch.setenv("DIE_AT", "-")
    monkeypatch.setenv(CALLS, str(told))
    assert nas("resume", "run").exit_code == 0
    asked = calls(told)
    lines = [
        line["architecture"]
        for name in ("observations.jsonl", "verification.jsonl")
        for line in RunFolder.open(here / "run").read_journal(name)
    ]
    assert not asked_twice(asked)
    keys = {json.dumps(network, sort_keys=True) for network in asked}
    assert keys == {json.dumps(network, sort_keys=True) for network in lines}


# -- what makes no sense --------------------------------------------------------------------------


def test_commands_about_own_networks_refuse_in_a_sentence(here: Path) -> None:
    assert search(RIG).exit_code == 0
    ids = [one["id"] for one in json.loads((here / "run" / "pareto.json").read_text())["front"]]
    for command in (
        ["retrain", "run"],
        ["export", "run", "--format", "torch"],
        ["evaluate", "run"],
        ["show", "run", "--attention", ids[0]],
        ["resume", "run", "--retime"],
        ["resume", "run", "--keep", "all"],
        ["arch", "export", "run"],
        ["translate", "run"],
    ):
        result = nas(*command)
        assert result.exit_code != 0, command
        text = said(result)
        assert "Traceback" not in text and "should not have happened" not in text, (command, text)
    for command in (
        ["show", "run"],
        ["show", "run", "--pick"],
        ["report", "run"],
        ["runs", "--dir", "."],
    ):
        result = nas(*command)
        assert result.exit_code == 0, result.output
    assert "mine" in nas("runs", "--dir", ".").output
    assert "Δ quality" in said(nas("show", "run", "--pick"))
    state = json.loads(nas("show", "run", "--json").output)
    assert state["evaluator"] == RIG and state["state"] == "finished"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--from", "."], "--from is for networks that are trained here"),
        (["--data", "synthetic"], "--data is for networks that are trained here"),
        (["--workload", "batch=2"], "--workload is for networks that are trained here"),
        (["--keep", "all"], "--keep is for networks that are trained here"),
        (["--deterministic"], "--deterministic is for networks that are trained here"),
        (["--set", "own_updates=7"], "the setting own_updates is for networks that are trained"),
        (["--set", "supernet.epochs=5"], "the setting supernet.epochs is for networks that are"),
        (["--pick", "params<=1e5"], "does not measure: add params to --objectives"),
    ],
)
def test_options_about_own_networks_are_refused(here: Path, more: list[str], words: str) -> None:
    result = search(RIG, *more)
    assert result.exit_code == 2 and words in said(result)


def test_the_guide_names_the_settings_that_are_refused() -> None:
    listed = PAGE.read_text("utf-8").partition("and so are settings")[2].partition("\n\n")[0]
    for name in setting_names():
        named = f"`{name}`" in listed or f"`{name.partition('.')[0]}.…`" in listed
        assert named == trained_here(name), name


def test_a_pick_that_nothing_meets_is_told_at_the_end(here: Path) -> None:
    words = "nas show with another --pick shows another network"
    missed, met = (search(RIG, "--pick", f"ms<={most}", "--out", str(most)) for most in (0.5, 3.0))
    assert missed.exit_code == met.exit_code == 0
    assert f"; {words}" in said(missed) and "Warning no network" in said(missed)
    assert words not in said(met)


def test_genes_need_an_evaluator_and_an_evaluator_genes(here: Path) -> None:
    alone = nas("search", "--space", "mine.toml")
    assert alone.exit_code == 2 and "--evaluator NAME" in said(alone)
    other = nas("search", "--space", "digits", "--evaluator", RIG)
    assert other.exit_code == 2 and "a TOML file with [genes]" in said(other)
    assert np.isfinite(loss(SPACE.decode(enumerate_all(SPACE)[:1])[0].to_json()))


def test_a_name_that_no_folder_can_begin_with_is_refused_in_its_file(here: Path) -> None:
    (here / "mine.toml").write_text(GENES.replace('"mine"', '"gpt/large"'), "utf-8")
    result = search(RIG)
    assert result.exit_code == 2 and "mine.toml, line 3, space.name" in said(result)


def test_parts_of_names_are_whole_in_the_spec(here: Path) -> None:
    (here / "measure.sh").write_text("#!/bin/sh\necho 1\n", "utf-8")
    (here / "measure.sh").chmod(0o755)
    found = EvaluatorName.read("command:./measure.sh 'a b'").here()
    assert found == f"command:{here / 'measure.sh'} 'a b'"
    with pytest.raises(UsageError):
        EvaluatorName.read("command:./absent.sh").here()
