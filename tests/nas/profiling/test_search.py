"""Searches with a device profile: of another device, of this one, and of the wrong things."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from latency.device import describe_device
from latency.workload import Workload
from nas.console.app import app
from nas.console.commands.search import Here
from nas.objectives import timed_workload
from nas.objectives.latency_limits import keeps
from nas.profiling import latency_meter
from nas.profiling.device_profile import (
    DeviceProfile,
    genes_digest,
    settings_digest,
    write_device_profile,
)
from nas.request.resolve import StartingPoint, resolve
from nas.request.spec import SearchRequest, SearchSpec, Start
from nas.run.folder import RunFolder
from nas.search.front import Front, pick, read_front
from search_spaces.errors import DamagedRunError, UsageError
from search_spaces.loading import load_space
from tests.support.pipeline_cases import NUMBERS, TINY, edited, logged
from tests.support.profile_cases import WORKLOAD, few_regressors, made_profile

pytestmark = pytest.mark.usefixtures("few_regressors")

RUN = Path("run")
OTHER = Workload(batch=9, source_length=4)
THIRD = Workload(batch=10, source_length=4)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY, encoding="utf-8")
    return tmp_path


def search(*arguments: str, out: Path = RUN, numbers: dict[str, str] | None = None) -> Result:
    settings = [f"--set={name}={value}" for name, value in (NUMBERS | (numbers or {})).items()]
    given = ("--space", "./tiny.toml", "--out", str(out), "--preset", "smoke", *settings)
    return CliRunner().invoke(app, ["search", "--no-baseline", "--retrain=1", *given, *arguments])


def carried(profile: DeviceProfile, *arguments: str, out: Path = RUN) -> Result:
    write_device_profile(Path("board.json"), profile)
    return search("--device-profile", "board.json", *arguments, out=out)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a search that has ended, and the profile of another device."""
    folder = tmp_path_factory.mktemp("carried")
    with pytest.MonkeyPatch.context() as patch, few_regressors():
        patch.chdir(folder)
        patch.setenv("NAS_CACHE_DIR", str(folder / "cache"))
        Path("tiny.toml").write_text(TINY, encoding="utf-8")
        done = carried(made_profile())
        assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def ready(here: Path, whole: Path) -> None:
    """That search here, to read, to resume or to damage."""
    shutil.copytree(whole / RUN, RUN)
    shutil.copy(whole / "board.json", "board.json")


def no_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency_meter, "time_session", None)


def test_another_device_is_predicted_and_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    no_timing(monkeypatch)
    done = carried(made_profile(), "--limit", "latency_ms=0.9")
    assert done.exit_code == 0, done.output
    front = json.loads((RUN / "pareto.json").read_text())
    assert front["schema"] == 2 and front["predicted_for"] == {"latency_ms": "board"}
    entries = read_front(RunFolder.open(RUN)).entries
    assert any("latency_ms" not in entry.measured for entry in entries)
    assert all(keeps(e.measured, e.predicted, {"latency_ms": 0.9}) for e in entries)
    assert "predicted for board" in done.stdout and "±" in done.stdout
    assert "this device differs in name" in done.stderr
    assert "predicted for board" in (RUN / "report.html").read_text()


@pytest.mark.usefixtures("ready")
def test_choosing_goes_by_predictions_where_nothing_was_measured() -> None:
    front = read_front(RunFolder.open(RUN))
    least = min(entry.value("latency_ms") for entry in front.entries)
    shown = CliRunner().invoke(app, ["show", "run", "--pick"])
    assert shown.exit_code == 0 and shown.stdout.count("±") >= 1, shown.output
    for how in ("cheapest", "knee", "best", f"latency_ms<={2 * least}"):
        assert pick(front, how).value("latency_ms") <= max(front.points()[:, 1])
        assert CliRunner().invoke(app, ["show", "run", "--pick", how]).exit_code == 0
    assert pick(front, "cheapest").value("latency_ms") == least
    with pytest.raises(UsageError, match=f"nearest is .* with latency_ms {least:.4g}"):
        pick(front, f"latency_ms<={least / 2}")


def test_the_smallest_limit_that_is_named_can_be_met(monkeypatch: pytest.MonkeyPatch) -> None:
    no_timing(monkeypatch)
    refusal = carried(made_profile(), "--limit", "latency_ms=0.01").stderr
    least = re.search(r"it can reach is ([\d.]+)", refusal)
    assert least is not None
    done = carried(made_profile(), "--limit", f"latency_ms={least[1]}")
    assert done.exit_code == 0, done.output


@pytest.mark.usefixtures("ready")
def test_resuming_needs_nothing_but_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    no_timing(monkeypatch)
    before = (RUN / "pareto.json").read_bytes()
    Path("board.json").unlink()
    shutil.rmtree(RUN / "latency")
    (RUN / "pareto.json").unlink()
    done = CliRunner().invoke(app, ["resume", str(RUN)])
    assert done.exit_code == 0, done.output
    assert (RUN / "pareto.json").read_bytes() == before


@pytest.mark.usefixtures("ready")
def test_the_profile_is_part_of_the_request() -> None:
    done = carried(replace(made_profile(), seed=1))
    assert done.exit_code == 2 and "another request (device_profile differs)" in done.stderr


@pytest.mark.usefixtures("ready")
def test_a_damaged_copy_is_named() -> None:
    (RUN / "device_profile.json").write_text("{}")
    shutil.rmtree(RUN / "latency")
    done = CliRunner().invoke(app, ["resume", str(RUN)])
    assert done.exit_code == 1 and "run/device_profile.json" in done.stderr
    assert "put the profile back" in done.stderr


def test_on_its_own_device_finalists_are_timed() -> None:
    own = made_profile(device=describe_device("cpu"))
    done = carried(own)
    assert done.exit_code == 0, done.output
    front = read_front(RunFolder.open(RUN))
    assert not front.predicted_for and "differs in" not in done.stderr
    assert all("latency_ms" in entry.measured for entry in front.entries)
    events = logged(RunFolder.open(RUN))
    assert not any(e["stage"] == "latency" and "architecture_id" in e for e in events)


def test_the_workload_is_chosen_or_overridden() -> None:
    assert carried(made_profile(WORKLOAD, OTHER), "--workload", "batch=9").exit_code == 0
    assert RunFolder.open(RUN).spec.space.workload["batch"] == 9
    assert (
        search("--workload", "batch=3", "--objectives", "quality,flops", out=Path("b")).exit_code
        == 0
    )
    assert RunFolder.open(Path("b")).spec.space.workload["batch"] == 3


def refused(done: Result, message: str) -> None:
    assert done.exit_code == 2 and message in done.stderr, done.output
    assert len(done.stderr.splitlines()) == 1 and not RUN.exists()


def test_profiles_that_do_not_fit_are_one_sentence() -> None:
    refused(carried(made_profile(OTHER, THIRD)), "choose --workload")
    refused(carried(made_profile(), "--workload", "batch=7"), "no workload batch=7")
    refused(carried(made_profile(), "--objectives", "quality,flops"), "name latency_ms")
    Path("tiny.toml").write_text(TINY.replace("num_layers = [1, 2]", "num_layers = [1]"))
    refused(carried(made_profile()), "with nas profile --space ./tiny.toml")
    Path("board.json").write_text("no")
    refused(search("--device-profile", "board.json"), "damaged or no JSON")
    refused(search("--device-profile", "none.json"), "there is no device profile")


def test_a_profile_of_the_whole_space_is_no_profile_of_a_part() -> None:
    advice = "--space ./tiny.toml and leave --restrict out, or write the space that it leaves to"
    refused(carried(made_profile(), "--restrict", "encoder.num_layers=1"), advice)


class Elsewhere(Here):
    """Makes a space, and finds one around a checkpoint, that is not the tiny one."""

    def made(self, data: str, hours: float | None, device: str) -> str:
        Path("my made.toml").write_text(edited(("num_layers = [1, 2]", "num_layers = [1]")))
        return "my made.toml"

    def start(self, name: str) -> StartingPoint:
        space = self.space(self.made(name, None, "cpu"))
        return StartingPoint(Start(folder="/a model", digest="0" * 64), space, lambda _: None)


@pytest.mark.parametrize(
    ("asked", "advice"),
    [
        ({"data": "pets"}, "nas profile --space 'my made.toml'"),
        ({"start": "m"}, "nas space from '/a model' and make one with nas profile --space FILE"),
    ],
)
def test_spaces_that_nobody_named_are_told_as_they_can_be_profiled(
    asked: dict[str, Any], advice: str
) -> None:
    write_device_profile(Path("board.json"), made_profile())
    request = SearchRequest(device_profile="board.json", **asked)
    with pytest.raises(UsageError, match=f"other choices than tiny: .*{advice}$"):
        resolve(request, Elsewhere(quiet=True))


def spec_with(name: str, objectives: tuple[str, ...], *held: Workload) -> SearchSpec:
    """A search of a shipped space with a profile of these workloads."""
    space, profile = load_space(name), made_profile(*held)
    own = replace(profile, settings=settings_digest(space), genes=genes_digest(space))
    write_device_profile(Path("board.json"), own)
    asked: dict[str, Any] = {"data": "synthetic", "baseline": "none", "objectives": objectives}
    return resolve(SearchRequest(space=name, device_profile="board.json", **asked), Here(True)).spec


def test_a_profile_of_tokens_changes_no_segments() -> None:
    token = Workload(1, 64, mode="decode")
    space = spec_with("python-source", ("quality", "decode_ms"), token).space
    assert space.workload["source"] == load_space("python-source").workload["source"]
    assert timed_workload(space, "decode") == token
    with pytest.raises(UsageError, match="nothing of latency_ms: .* batch=1,source=512,"):
        spec_with("python-source", ("quality", "latency_ms"), token)


def test_a_token_behind_the_longest_text_is_found_in_a_profile() -> None:
    whole, token = Workload(1, 4096), Workload(1, 4095, mode="decode")
    both = ("quality", "latency_ms", "decode_ms")
    assert spec_with("lm-small", both, whole, token).space.workload["source"] == 4096
    with pytest.raises(UsageError, match="nas profile --workload batch=1,source=4095,"):
        spec_with("lm-small", both, whole)


def test_a_limit_that_the_profile_rules_out(monkeypatch: pytest.MonkeyPatch) -> None:
    no_timing(monkeypatch)
    done = carried(made_profile(), "--limit", "latency_ms=0.01")
    assert done.exit_code == 2 and "no network of the space meets latency_ms=0.01" in done.stderr
    assert not RUN.exists()


@pytest.mark.parametrize("change", [{"schema": 1}, {"predicted_for": {}}, {"schema": 3}])
@pytest.mark.usefixtures("ready")
def test_a_front_of_mixed_schemas_is_damaged(change: dict[str, Any]) -> None:
    data = json.loads((RUN / "pareto.json").read_text())
    with pytest.raises(DamagedRunError):
        Front.from_json(data | change)


@pytest.mark.usefixtures("ready")
def test_its_result_fits_the_schema() -> None:
    from tests.nas.search.test_front import PARETO, valid

    data = json.loads((RUN / "pareto.json").read_text())
    assert valid(PARETO, data) and not valid(PARETO, data | {"schema": 1})
    del data["predicted_for"]
    assert not valid(PARETO, data) and valid(PARETO, data | {"schema": 1})
