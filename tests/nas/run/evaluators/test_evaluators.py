"""Evaluators of others: tables, commands, objects, and all that may be wrong with them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from nas.executors.asking import asked
from nas.executors.base import Failure
from nas.run.evaluators import LARGEST, Answer, Question, observe
from nas.run.evaluators.command import CommandEvaluator
from nas.run.evaluators.python import load_evaluator
from nas.run.evaluators.table import TableEvaluator
from nas.search.ranking import PairwiseLinear
from nas.search.ranking.report_card import quick_card
from nas.stages.base import quality_range
from search_spaces.errors import DataError, UnknownNameError, UsageError
from search_spaces.genes import Gene, GeneSpace, Network

SPACE = GeneSpace(
    "two",
    (
        Gene("width", (8, 16)),
        Gene("layers", (1, 2)),
        Gene("ratio", (2, 4), per_layer="layers"),
        Gene("norm", ("layer", "rms"), ordered=False),
    ),
)
NETWORKS: list[Network] = [
    {"width": 8, "layers": 1, "ratio": [2], "norm": "rms"},
    {"width": 16, "layers": 2, "ratio": [4, 2], "norm": "layer"},
]
COLUMNS = {
    "width": np.array([8, 16]),
    "layers": np.array([1, 2]),
    "ratio": np.array([[2, 0], [4, 2]]),
    "norm": np.array(["rms", "layer"]),
    "loss": np.array([1.5, 0.5]),
    "ms": np.array([2.0, 7.0]),
}


class Doubler:
    """An evaluator."""

    def evaluate(self, networks: Sequence[Network]) -> list[float]:
        return [2.0 * network["width"] for network in networks]


READY = Doubler()


class Leaves:
    """No evaluator: whoever makes one is ended, as by `argparse`."""

    def __init__(self) -> None:
        sys.exit(2)


class Said:
    """An evaluator that says what it was told to."""

    def __init__(self, answers: Any) -> None:
        self.answers = answers

    def evaluate(self, networks: Sequence[Network]) -> Any:
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers


def _table(folder: Path, ending: str, columns: dict[str, Any] = COLUMNS) -> Path:
    path = folder / f"table{ending}"
    if ending == ".npz":
        np.savez(path, **columns)
        return path
    flat = {name: values for name, values in columns.items() if values.ndim == 1}
    for layer in range(2):
        flat[f"ratio.{layer}"] = columns["ratio"][:, layer]
    frame = pandas.DataFrame(flat)
    frame.to_csv(path, index=False) if ending == ".csv" else frame.to_parquet(path)
    return path


@pytest.mark.parametrize("ending", [".npz", ".csv", ".parquet"])
def test_a_table_knows_its_networks(tmp_path: Path, ending: str) -> None:
    table = TableEvaluator(SPACE, _table(tmp_path, ending), "loss", ["ms"])
    assert SPACE.decode(table.rows) == NETWORKS
    absent = {**NETWORKS[0], "norm": "layer"}
    found = observe(table, [NETWORKS[1], absent, NETWORKS[0]])
    assert found[0] == Answer(0.5, costs={"ms": 7.0}) and found[2].quality == 1.5
    assert found[1].quality is None and "does not hold" in str(found[1].failure)
    negated = TableEvaluator(SPACE, _table(tmp_path, ending), "loss", maximise=True)
    assert observe(negated, NETWORKS)[0].quality == -1.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss": None}, "no column 'loss'"),
        ({"width": None}, "no column 'width'"),
        ({"width": np.array([8, 9])}, "row 1: width is 9"),
        ({"ratio": np.array([[2, 0], [4, 7]])}, "row 1: ratio.1 is 7"),
        ({"ratio": np.array([[2], [4]])}, "each of 2 layers"),
        ({"loss": np.array(["a", "b"])}, "not one of numbers"),
        ({"loss": np.array([1.0])}, "different lengths"),
    ],
)
def test_wrong_tables_are_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    columns = {name: values for name, values in {**COLUMNS, **change}.items() if values is not None}
    with pytest.raises(DataError, match=words):
        TableEvaluator(SPACE, _table(tmp_path, ".npz", columns), "loss")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("table.npz", b"PK nonsense", "cannot be read"),
        ("table.npz", b"", "cannot be read"),
        ("table.csv", b"", "cannot be read"),
        ("table.csv", b"width,loss\n", "no rows"),
        ("table.parquet", b"nonsense", "cannot be read"),
        ("table.xlsx", b"", "ends in"),
        ("absent.csv", None, "No such file"),
    ],
)
def test_files_that_are_no_tables(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        TableEvaluator(SPACE, tmp_path / name, "loss")


WORDS = GeneSpace(
    "words",
    (
        Gene("kind", ("None", "1", "2"), ordered=False),
        Gene("width", (96, 192)),
        Gene("layers", (1, 2)),
        Gene("ratio", (2, 4), per_layer="layers"),
        Gene("eps", (1e-6, 1e-5), when={"kind": ("1",)}),
        Gene("bias", (0, 1)),
    ),
)
CSV = """\
kind,width,layers,ratio.0,ratio.1,eps,bias,loss,ms
None,192,1,4,n/a!,-,True,0.5,7
1,96,2,2,4,1e-5,False,1.5,-1.#IND
2,192,2,4,2,,1,NA,2.5
"""


def test_texts_of_a_csv_are_what_its_genes_are(tmp_path: Path) -> None:
    """Where a gene is not there anything may stand; what looks like no text may be a category."""
    (tmp_path / "table.csv").write_text(CSV)
    table = TableEvaluator(WORDS, tmp_path / "table.csv", "loss", ["ms"])
    found = WORDS.decode(table.rows)
    assert [(one["kind"], one["width"], one["ratio"], one.get("eps")) for one in found] == [
        ("None", 192, [4], None),
        ("1", 96, [2, 4], 1e-5),
        ("2", 192, [4, 2], None),
    ]
    assert [one["bias"] for one in found] == [1, 0, 1]
    answers = table.evaluate(found)
    assert [str(one.quality) for one in answers] == ["0.5", "1.5", "nan"]
    assert [str(one.costs["ms"]) for one in answers] == ["7.0", "nan", "2.5"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("1,96,2,2,4,", "1,96,2,2,-,", "row 1: ratio.1 is -;"),
        ("1,96,2,2,4,", "1,,2,2,4,", "row 1: width is empty;"),
        ("1,96,2,2,4,1e-5", "1,96,2,2,4,?", "row 1: eps is [?];"),
        ("None,192", "none,192", "row 0: kind is none;"),
        ("None,192", ",192", "row 0: kind is empty;"),
        ("False,1.5", "False,low", "'loss' is not one of numbers"),
    ],
)
def test_what_is_there_has_to_be_a_choice(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert CSV.count(old) == 1
    (tmp_path / "table.csv").write_text(CSV.replace(old, new))
    with pytest.raises(DataError, match=words):
        TableEvaluator(WORDS, tmp_path / "table.csv", "loss", ["ms"])


def test_pickles_are_not_read(tmp_path: Path) -> None:
    path = _table(tmp_path, ".npz", {**COLUMNS, "extra": np.array([{}, {}], dtype=object)})
    with pytest.raises(DataError, match="cannot be read"):
        TableEvaluator(SPACE, path, "loss")


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (ValueError("no such layer"), "raised ValueError: no such layer"),
        ([1.0], "1 answers for 2 networks"),
        (None, "raised TypeError"),
        ([float("nan"), 1.0], "no finite number"),
        (["1", 1.0], "no finite number"),
        ([True, 1.0], "no finite number"),
        ([10**400, 1.0], "no finite number"),
        ([-1e160, 1.0], "gave -1e+160 as the quality, too large"),
        ([{"quality": 1.0, "std": 1e101}, 1.0], "1e+101 as the standard deviation, too large"),
        ([{"quality": 1.0, "costs": {"ms": 2e200}}, 1.0], "2e+200 as the cost 'ms', too large"),
        ([{"quality": 1.0, "std": -1.0}, 1.0], "standard deviation"),
        ([{"quality": 1.0, "costs": {"ms": None}}, 1.0], "cost 'ms'"),
        ([{"quality": 1.0, "costs": 3}, 1.0], "not a mapping"),
        ([{"qualty": 1.0}, 1.0], "unknown key 'qualty'"),
        ([{"failure": "out of memory"}, 1.0], "out of memory"),
    ],
)
def test_wrong_answers_are_failures(answers: Any, words: str) -> None:
    first = observe(Said(answers), NETWORKS)[0]
    if answers == [1.0]:  # asked for alone, one answer is right
        assert first == Answer(1.0)
        assert "1 answers for 2" not in str(first.failure)
        return
    assert first.quality is None and words in str(first.failure)


def test_the_largest_numbers_that_are_taken_can_be_compared() -> None:
    assert observe(Said([LARGEST, -LARGEST]), NETWORKS) == [Answer(LARGEST), Answer(-LARGEST)]
    features, losses = np.arange(8.0)[:, None], np.where(np.arange(8) < 4, LARGEST, -LARGEST)
    assert np.isfinite(quick_card(features, losses, PairwiseLinear, 0).error)
    assert np.isfinite(quality_range(losses.tolist())).all()


def test_one_bad_network_does_not_take_others_along() -> None:
    class Choosy:
        def evaluate(self, networks: Sequence[Network]) -> list[float]:
            return [float(1 / (network["width"] - 8)) for network in networks]

    found = observe(Choosy(), NETWORKS)
    assert "ZeroDivisionError" in str(found[0].failure)
    assert found[1] == Answer(0.125)


def _script(folder: Path, body: str) -> list[str]:
    path = folder / "rig.py"
    path.write_text(f"import json, sys\nnetwork = json.loads(sys.stdin.readline())\n{body}\n")
    return [sys.executable, str(path)]


def test_a_command_answers_in_a_line(tmp_path: Path) -> None:
    body = "print(json.dumps({'quality': network['width'], 'std': 0.5, 'costs': {'ms': 3}}))"
    rig = CommandEvaluator(_script(tmp_path, body))
    assert observe(rig, NETWORKS) == [Answer(float(w), 0.5, {"ms": 3.0}) for w in (8, 16)]
    plain = CommandEvaluator(_script(tmp_path, "print(len(network['ratio']))"))
    assert [answer.quality for answer in observe(plain, NETWORKS)] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("sys.exit('no board')", "exit code 1: no board"),
        ("print('hello')", "did not write a line of JSON"),
        ("pass", "did not write a line of JSON"),
        ("print('NaN')", "no finite number"),
        ("print('[1]')", "no finite number"),
    ],
)
def test_commands_that_fail(tmp_path: Path, body: str, words: str) -> None:
    (found,) = observe(CommandEvaluator(_script(tmp_path, body)), NETWORKS[:1])
    assert found.quality is None and words in str(found.failure)


def test_a_command_that_hangs_is_killed(tmp_path: Path) -> None:
    rig = CommandEvaluator(_script(tmp_path, "sys.stdin.read()\nwhile True: pass"), timeout_s=0.2)
    (found,) = observe(rig, NETWORKS[:1])
    assert "longer than 0.2 s" in str(found.failure)


def test_a_command_that_is_not_there() -> None:
    (found,) = observe(CommandEvaluator(["./no-such-program"]), NETWORKS[:1])
    assert "cannot be started" in str(found.failure)
    with pytest.raises(UsageError, match="list"):
        CommandEvaluator("one text")
    with pytest.raises(UsageError, match="positive"):
        CommandEvaluator(["x"], timeout_s=0)


@pytest.mark.parametrize("name", ["Doubler", "READY"])
def test_objects_are_imported(name: str) -> None:
    found = observe(load_evaluator(f"tests.nas.run.evaluators.test_evaluators:{name}"), NETWORKS)
    assert [answer.quality for answer in found] == [16.0, 32.0]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("tests.nas.run.evaluators.test_evaluators", UsageError, "package.module:Name"),
        ("tests.no_such:Name", UnknownNameError, "cannot be imported"),
        ("tests.nas.run.evaluators.test_evaluators:Absent", UnknownNameError, "has no 'Absent'"),
        ("tests.nas.run.evaluators.test_evaluators:NETWORKS", UsageError, "no method"),
        ("tests.nas.run.evaluators.test_evaluators:Leaves", UsageError, "made: SystemExit: 2"),
        ("leaves_at_once:Rig", UsageError, "cannot be imported: SystemExit: 0"),
    ],
)
def test_what_is_no_evaluator_is_named(
    name: str, kind: type[Exception], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaves_at_once.py").write_text("import sys\nclass Rig: ...\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(kind, match=words):
        load_evaluator(name)


def test_a_command_that_is_stopped_from_outside_took_too_long(tmp_path: Path) -> None:
    evaluator = CommandEvaluator(["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 1000"])
    question = Question("a", {"width": 1}, {})
    ((outcome,),) = asked(evaluator, [question], [], 0.5)
    assert isinstance(outcome, Failure) and outcome.kind == "timeout"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
