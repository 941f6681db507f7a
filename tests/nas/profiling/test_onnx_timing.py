"""`nas profile --runtime onnxruntime`: the work that is timed, and the device that it makes."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from latency.device import describe_device
from latency.workload import Workload
from nas.console.app import app
from nas.profiling.device_profile import read_device_profile
from nas.profiling.files import journal_path
from search_spaces.architecture import Architecture
from search_spaces.loading import parse_space
from search_spaces.space import SearchSpace
from tests.nas.console.commands.test_profile import FakeDevice, Killed
from tests.nas.profiling.test_search import carried
from tests.support.pipeline_cases import TINY
from tests.support.profile_cases import made_profile
from tests.support.task_cases import SPACES, networks_of, with_memory
from tests.support.trained_cases import LANGUAGE

pytestmark = pytest.mark.export
timing: Any = pytest.importorskip("nas.profiling.onnx_timing", reason="the extra export")

OUT = Path("board.json")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY, encoding="utf-8")
    return tmp_path


# -- what is done ---------------------------------------------------------------------------------


class Exported:
    """One network of a space as graphs, and what it does when it is timed."""

    def __init__(self, space: SearchSpace, network: Architecture, folder: Path) -> None:
        timing.export_random(space, [network], folder)
        self.space, self.folder = space, folder / network.id

    def does(self, *arguments: Any, **options: Any) -> Any:
        call = timing.onnx_call(self.space, self.folder, Workload(*arguments, **options), 1)
        first, again = call(), call()
        assert str(first) == str(again)  # nothing of a call is left over for the next one
        return first


def exported(kind: str, folder: Path) -> Exported:
    return Exported(SPACES[kind], networks_of(SPACES[kind], 1)[0], folder)


def test_a_classifier_classifies(tmp_path: Path) -> None:
    one = exported("classification", tmp_path)
    assert one.does(3, 4)[0].shape == (3, 10) and one.does(1, 4)[0].shape == (1, 10)


@pytest.mark.slow
def test_a_translator_reads_both_sides_and_writes_all_tokens(tmp_path: Path) -> None:
    one = exported("translation", tmp_path)
    assert one.does(2, 7, 5)[0].shape == (2, 1, 5, 160)
    for batch, length, beam in ((1, 1, None), (1, 9, 1), (3, 6, 4)):
        found = one.does(batch, 7, length, beam=beam, mode="generate")
        assert len(found) == batch
        assert {len(text.tokens) for texts in found for text in texts} <= {length - 1, length}


@pytest.mark.slow
@pytest.mark.parametrize("memory", [False, True])
def test_a_language_model_reads_and_goes_on(memory: bool, tmp_path: Path) -> None:
    space = parse_space(with_memory(LANGUAGE), "space") if memory else SPACES["language_modelling"]
    network = next(
        n for n in networks_of(space, 9) if n.decoder and bool(n.decoder.memory_length) == memory
    )
    one = Exported(space, network, tmp_path)
    assert one.does(2, 7)[0].shape == (2, 7, 100)
    assert one.does(2, 7, 5, mode="generate").shape == (2, 5)


def test_graphs_are_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []
    monkeypatch.setattr(timing, "export_random", lambda space, networks, out: folders.append(out))
    space = SPACES["classification"]
    with timing.exported_calls(space, networks_of(space, 1), Workload(1, 4), 1):
        assert folders[0].is_dir()
    assert not folders[0].exists()


# -- the command ----------------------------------------------------------------------------------


def profile(*arguments: str) -> Result:
    given = ("--space", "./tiny.toml", "--threads", "1", "--out", str(OUT), "--samples", "12")
    return CliRunner().invoke(app, ["profile", *given, "--runtime", "onnxruntime", *arguments])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """Nothing is exported and nothing is timed."""
    monkeypatch.setattr(timing, "export_random", lambda *_: None)
    return FakeDevice(monkeypatch)


def test_a_profile_names_the_runtime(quick: FakeDevice) -> None:
    done = profile("--quiet")
    assert done.exit_code == 0, done.output
    made = read_device_profile(OUT)
    here = describe_device("cpu")
    assert made.device == replace(here, runtime=timing.runtime_name())
    assert made.device.digest != here.digest
    assert re.fullmatch(r"onnxruntime \d+\.\d+.*", str(made.device.runtime))
    assert made.name.endswith(f"1 thread, {made.device.runtime}") and len(set(quick.timed)) == 11


def test_another_runtime_is_another_request(quick: FakeDevice) -> None:
    quick.fatal = 0
    with pytest.raises(Killed):
        profile()
    given = ("--space", "./tiny.toml", "--threads", "1", "--out", str(OUT), "--samples", "12")
    done = CliRunner().invoke(app, ["profile", *given])
    assert done.exit_code == 2 and "another request, which differs in device" in done.stderr


def test_a_search_predicts_for_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    device = replace(describe_device("cpu"), runtime="onnxruntime 9.9")
    done = carried(made_profile(device=device))
    assert done.exit_code == 0, done.output
    assert "differs in runtime (here torch; there onnxruntime 9.9)" in done.stderr


@pytest.mark.slow
def test_a_real_profile(here: Path) -> None:
    done = profile("--samples", "8")
    assert done.exit_code == 0, done.output
    made = read_device_profile(OUT)
    assert len(made.workloads[0].measured) == 8 and not journal_path(OUT).exists()


REFUSED = {
    "a card": (("--device", "cuda"), "runs on the processor; leave out --device cuda"),
    "half precision": (("--workload", "dtype=bfloat16"), "leave out dtype=bfloat16"),
    "a graph": (("--workload", "runtime=graph"), "run in one way; leave out runtime=graph"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_it_cannot_do_is_refused(what: str) -> None:
    arguments, message = REFUSED[what]
    done = profile(*arguments)
    assert done.exit_code == 2 and message in done.stderr, done.output
    assert len(done.stderr.splitlines()) == 1 and not OUT.exists()


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for name in (
        "nas.profiling.onnx_timing",
        "supernet.export.onnx",
        "supernet.export.onnx_driver",
    ):
        monkeypatch.delitem(sys.modules, name, raising=False)
    done = profile()
    assert done.exit_code == 2 and "needs the package onnxruntime: pip install" in done.stderr
    assert not OUT.exists() and not journal_path(OUT).exists()
