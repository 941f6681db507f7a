"""`nas search`, `resume` and `retrain`, over a pipeline that does not train."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nas.console.app import app
from nas.run.events import Event, StageStarted
from nas.run.folder import RunFolder
from nas.run.stages import SEARCH_STAGES
from nas.run.threads import use_threads
from search_spaces.errors import DataError, DivergedError, NasError, UnreachableLimitError
from tests.support import cli_fakes
from tests.support.cli_fakes import LARGE, MIDDLE, SMALL, last_json

COSTS = ("--objectives", "quality,flops")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    cli_fakes.install(monkeypatch)
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it to 80
    return tmp_path


def nas(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def search(*arguments: str) -> Result:
    return nas("search", "--space", "digits", *arguments)


def failing(error: BaseException) -> Any:
    def run(folder: RunFolder) -> Iterator[Event]:
        yield StageStarted("declare", "Declare")
        raise error

    return run


def test_a_search_prints_the_front_the_winner_and_what_to_type_next() -> None:
    done = search()
    (run,) = Path("runs").iterdir()
    assert done.exit_code == 0, done.output
    assert all(network.id in done.stdout for network in (SMALL, MIDDLE, LARGE))
    assert "L2 d32 · softmax/omni" in done.stdout
    assert "test accuracy 0.9750" in done.stdout
    assert f"nas show {run}" in done.stdout.splitlines()[-2]
    assert "nothing was [cut]" in done.stderr
    assert "Supernet" in done.stderr
    assert "Supernet" not in done.stdout


def test_the_default_folder_is_named_by_space_and_digest() -> None:
    first, second = (last_json(search("--json", "--seed", s).stdout)["run"] for s in "12")
    digest = RunFolder.open(Path(first)).spec.digest
    assert first == f"runs/digits-{digest[:8]}"
    assert first != second


def test_latency_columns_appear_only_where_latency_counts() -> None:
    assert "pred. ms" in search().stdout
    assert "ms" not in search(*COSTS).stdout.split("network")[1].splitlines()[0]


def test_quiet_prints_only_the_last_lines() -> None:
    done = search("--quiet", "--out", "here")
    assert done.stderr == ""
    words = [line.split()[0] for line in done.stdout.splitlines()]
    assert words == ["Winner", "There", "Run", "Report", "Next", "nas"]  # "There is no baseline"


def test_json_prints_events_and_the_result_as_the_last_line() -> None:
    done = search("--json", "--out", "here")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0] == {
        "event": "StageStarted",
        "stage": "declare",
        "label": "Declare",
        "total": None,
    }
    assert lines[-1]["run"] == "here"
    assert lines[-1]["pareto"] == "here/pareto.json"
    assert lines[-1]["report"] == "here/report.html"
    assert [r["test_accuracy"] for r in lines[-1]["retrained"]] == [0.975]
    assert done.stderr == ""


def test_the_options_reach_the_spec() -> None:
    given = ["--preset", "smoke", "--seed", "7", "--device", "cuda", "--pick", "best"]
    given += ["--limit", "params=2e5", "--limit", "latency_ms=5"]
    search(*given, "--set", "supernet.epochs=31", "--set", "verified=3", "--out", "here")
    spec = RunFolder.open(Path("here")).spec
    assert (spec.preset, spec.seed, spec.device, spec.pick) == ("smoke", 7, "cuda", "best")
    assert spec.limits == {"latency_ms": 5.0, "params": 2e5}
    assert (spec.budget.supernet.epochs, spec.budget.verified) == (31, 3)
    assert spec.budget.observations == 32
    assert spec.dataset == "digits"


def test_protected_choices_reach_the_spec_and_are_shown() -> None:
    search("--keep", "encoder.attention=omni", "--keep", "encoder.2.ffn_dim=64,32", "--out", "here")
    kept = RunFolder.open(Path("here")).spec.keep
    assert kept == {"encoder.attention": ("omni",), "encoder.2.ffn_dim": (32, 64)}
    told = "--keep encoder.attention=omni --keep encoder.2.ffn_dim=32,64"
    assert told in nas("show", "here").stdout
    again = search("--keep", "encoder.2.ffn_dim=32,64", "--keep", "encoder.attention=omni")
    assert RunFolder.open(next(Path("runs").iterdir())).spec.keep == kept
    assert again.exit_code == 0


def test_protected_choices_are_told_as_they_are_typed() -> None:
    typed = "--keep encoder.attention=linear,omni --keep encoder.2.ffn_dim=32,64"
    search(*typed.split(), "--out", "here")
    assert f"kept from pruning: {typed}\n" in nas("resume", "here").stderr
    assert f"keep        {typed}\n" in nas("show", "here").stdout
    search("--out", "free")
    assert "keep        none\n" in nas("show", "free").stdout


@pytest.mark.parametrize("keep", ["encoder.atention=omni", "encoder.attention=omn", "omni"])
def test_a_wrong_protected_choice_is_refused_before_a_folder_is_made(keep: str) -> None:
    done = search("--keep", keep, "--out", "here")
    assert done.exit_code == 2 and not Path("here").exists()
    assert "encoder.attention" in done.stderr and done.stderr.count("\n") <= 3


def test_the_same_search_goes_on_and_says_so() -> None:
    assert "holds this search already" not in search("--out", "here").stderr
    again = search("--out", "here")
    assert again.exit_code == 0
    assert "here holds this search already: going on where it stopped" in again.stderr
    assert "in an earlier session" in again.stderr


def test_a_search_that_another_process_works_on_is_not_said_to_go_on() -> None:
    search("--out", "here")
    with RunFolder.open(Path("here")).locked():
        again = search("--out", "here")
    assert again.exit_code == 2 and "another process is working on here" in again.stderr
    assert "going on" not in again.stderr


def test_another_search_in_the_same_folder_is_refused() -> None:
    search("--out", "here")
    before = Path("here/spec.json").read_bytes()
    other = search("--out", "here", "--seed", "9")
    assert other.exit_code == 2
    assert "--out" in other.stderr
    assert "nas resume here" in other.stderr
    assert Path("here/spec.json").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--space", "digitz"], "did you mean digits?"),
        (["--space", "./none.toml"], "none.toml: there is no such file"),
        (["--preset", "fast"], "'fast' is not one of"),
        (["--objectives", "quality"], "at least one of"),
        (["--objectives", "quality,speed"], "unknown objective 'speed'"),
        (["--limit", "params"], "--limit takes NAME=VALUE"),
        (["--limit", "params=many"], "--limit params is 'many'"),
        (["--limit", "params=1", "--limit", "params=2"], "given twice"),
        (["--limit", "params=-3"], "must be above 0"),
        (["--limit", "quality=0.1"], "no limit can be set on 'quality'"),
        (["--limit", "params=10"], "the smallest it can reach is"),
        (["--objectives", "quality,params", "--objectives", ""], "unknown objective ''"),
        (["--workload", ""], "--workload is empty: write a value, or leave it out"),
        (["--dataset", ""], "--dataset is empty"),
        (["--limit", "flops<=1e5"], "--limit takes NAME=VALUE: write flops=1e5"),
        (["--limit", "flops >= 1e5"], "flops=1e5 would be the largest value of flops that is"),
        (["--limit", "tokens_per_s>=9"], "takes NAME=VALUE: write tokens_per_s=9"),
        (["--limit", "tokens_per_s<9"], "tokens_per_s=9 would be the smallest value"),
        (["--workload", "beam=4"], "digits classify and write nothing; leave out beam"),
        (["--workload", "mode=generate"], "its networks classify; leave out mode, beam and target"),
        (["--workload", "context=8"], "no decoder, of which the workload's context is"),
        (["--workload", "allocator=paged"], "have no decoder"),
        (["--baseline", "plain", "--no-baseline"], "--baseline plain and --no-baseline: give one"),
        (["--hours", "nan"], "--hours is nan, which is no number"),
        (["--hours", "20000"], "--hours is 20000.0: input should be less than or equal to 10000"),
        (
            ["--restrict", "encoder.num_layers=1", "--keep", "encoder.3.attention=omni"],
            "encoder.3.attention cannot be protected: no network that is searched has a layer 3",
        ),
        (["--set", "supernet.epoch=3"], "did you mean 'supernet.epochs'"),
        (["--set", "supernet=3"], "there is no setting 'supernet'"),
        (["--set", "supernet.epochs=0"], "supernet.epochs is '0'"),
        (["--pick", "kneee"], "--pick takes sensible, best, knee, cheapest, a saving"),
        (["--device", "tpu"], "tpu"),
        (["--data", "nowhere"], "nowhere"),
        (["--seed", "-1"], "'--seed'"),
        (["--threads", "0"], "'--threads'"),
        (["--sed", "1"], "--sed"),
    ],
)
def test_wrong_use_exits_with_2_and_leaves_nothing(arguments: list[str], message: str) -> None:
    done = search(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.output
    assert done.stdout == ""
    assert not Path("runs").exists()


def test_a_space_without_a_data_set_asks_for_one(here: Path) -> None:
    from search_spaces import dump_space, load_space

    text = dump_space(load_space("digits")).replace('dataset = "digits"', "")
    (here / "mine.toml").write_text(text, "utf-8")
    assert "--dataset" in nas("search", "--space", "mine.toml").stderr
    assert nas("search", "--space", "mine.toml", "--dataset", "digits").exit_code == 0


def test_a_failed_stage_is_one_sentence_and_1(monkeypatch: pytest.MonkeyPatch) -> None:
    cli_fakes.install(monkeypatch, failing(DivergedError("the loss is NaN at step 3")))
    done = search("--out", "here")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == "error: the loss is NaN at step 3"
    assert Path("here/spec.json").exists()


@pytest.mark.parametrize("error", [UnreachableLimitError("too fast"), DataError("do not fit")])
def test_a_request_refused_at_the_start_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch, error: NasError
) -> None:
    cli_fakes.install(monkeypatch, failing(error))
    assert search("--out", "here").exit_code == 2
    assert not Path("here").exists()


def test_a_request_refused_later_keeps_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(folder: RunFolder) -> Iterator[Event]:
        yield from cli_fakes.run_stage(folder, "declare", [])
        raise UnreachableLimitError("no network is that fast")

    cli_fakes.install(monkeypatch, run)
    assert search("--out", "here").exit_code == 2
    assert Path("here/spec.json").exists()


def test_files_that_are_no_run_are_left_alone(here: Path) -> None:
    (here / "here").mkdir()
    (here / "here" / "thesis.txt").write_text("mine", "utf-8")
    done = search("--out", "here")
    assert done.exit_code == 2
    assert [path.name for path in (here / "here").iterdir()] == ["thesis.txt"]


def test_ctrl_c_tells_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cli_fakes.install(monkeypatch, failing(KeyboardInterrupt()))
    done = search("--out", "my run")
    assert done.exit_code == 130
    assert done.stderr.splitlines()[-1] == "stopped; go on with: nas resume 'my run'"
    cli_fakes.install(monkeypatch)
    assert nas("resume", "my run").exit_code == 0


def test_an_interrupted_run_is_closed_before_the_command_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = []

    def run(folder: RunFolder) -> Iterator[Event]:
        try:
            yield StageStarted("declare", "Declare")
        finally:
            closed.append(folder.path)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    cli_fakes.install(monkeypatch, run)
    monkeypatch.setattr("nas.console.progress.LineReporter.show", interrupted)
    assert search("--out", "here").exit_code == 130
    assert closed == [Path("here")]


def test_a_full_disk_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "here/supernet/last.pt")
    cli_fakes.install(monkeypatch, failing(full))
    done = search("--out", "here")
    assert done.exit_code == 1
    last = done.stderr.splitlines()[-1]
    assert "no space is left on the device of here" in last
    assert "nas resume here" in last
    assert not Path("here/crash.log").exists()


@pytest.mark.parametrize(
    ("number", "file", "told"),
    [
        (
            errno.EROFS,
            "here/.lock",
            "; make here writable, or copy the run to where it is, and",
        ),
        (errno.EACCES, "here/spec.json", "; make here readable and writable, or copy the run to"),
        (errno.EROFS, "elsewhere/x", "; make elsewhere writable, or choose another place; then"),
        (errno.EISDIR, "here/front", "is a directory; put that right; then go on with: nas resume"),
    ],
)
def test_a_refusal_of_the_machine_tells_what_to_do(
    number: int, file: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli_fakes.install(monkeypatch, failing(OSError(number, os.strerror(number), file)))
    done = search("--out", "here")
    last = done.stderr.splitlines()[-1]
    assert done.exit_code == 1 and last.startswith(f"error: {file}: ") and told in last


def test_an_unexpected_error_keeps_its_traceback_in_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cli_fakes.install(monkeypatch, failing(ZeroDivisionError("oh\nno")))
    done = search("--out", "here")
    assert done.exit_code == 1
    assert "Traceback" not in done.output
    assert "here/crash.log" in done.stderr.splitlines()[-1]
    text = Path("here/crash.log").read_text("utf-8")
    assert "ZeroDivisionError" in text
    assert "in failing" not in text
    assert __file__ in text


def test_which_stages_are_done_again_stands_in_their_table_alone() -> None:
    words = re.findall("[a-z]+", nas("resume", "--help").stdout.partition("Options")[0])
    assert "pruned" in words and not {stage.name for stage in SEARCH_STAGES} & {*words}


def test_resume_needs_a_run(here: Path) -> None:
    done = nas("resume", "nowhere")
    assert done.exit_code == 2
    assert "nowhere is no run folder" in done.stderr
    assert list(here.iterdir()) == []


def test_resume_takes_the_name_of_a_run() -> None:
    name = Path(last_json(search("--json").stdout)["run"]).name
    assert nas("resume", name, "--quiet").exit_code == 0


def test_retrain_trains_another_network() -> None:
    search("--out", "here")
    done = nas("retrain", "here", "--pick", SMALL.id[:6])
    assert done.exit_code == 0, done.output
    assert Path(f"here/retrained/{SMALL.id}/result.json").exists()
    assert f"Trained {SMALL.id}, test accuracy 0.9750" in done.stdout


@pytest.mark.parametrize(
    ("pick", "message"), [("0000", "the nearest id is"), ("kne", "--pick takes sensible")]
)
def test_retrain_refuses_an_unknown_network(pick: str, message: str) -> None:
    search("--out", "here")
    done = nas("retrain", "here", "--pick", pick)
    assert done.exit_code == 2
    assert message in done.stderr


def test_retrain_needs_a_front() -> None:
    search("--out", "here")
    Path("here/pareto.json").unlink()
    done = nas("retrain", "here")
    assert done.exit_code == 2
    assert "nas resume here" in done.stderr


def test_threads_are_set_before_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []
    monkeypatch.setattr("threadpoolctl.threadpool_limits", limits.append)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    use_threads(None)
    assert (limits, os.environ["OMP_NUM_THREADS"]) == ([], "1")
    use_threads(3)
    assert (limits, os.environ["OMP_NUM_THREADS"]) == ([3], "3")


def test_the_number_of_threads_belongs_to_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int | None] = []
    for command in ("search", "retrain"):
        monkeypatch.setattr(f"nas.console.commands.{command}.use_threads", used.append)
    assert search("--out", "here", "--threads", "3").exit_code == 0
    assert RunFolder.open(Path("here")).spec.budget.threads == 3
    assert nas("resume", "here").exit_code == nas("retrain", "here").exit_code == 0
    assert used == [3, 3, 3]
    assert search("--threads", "3", "--set", "threads=4").exit_code == 2


def test_a_terminated_run_tells_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(folder: RunFolder) -> Iterator[Event]:
        yield StageStarted("declare", "Declare")
        os.kill(os.getpid(), signal.SIGTERM)
        yield StageStarted("latency", "Latency")

    before = signal.getsignal(signal.SIGTERM)
    cli_fakes.install(monkeypatch, run)
    done = search("--out", "here")
    assert done.exit_code == 143
    assert "nas resume here" in done.stderr
    assert signal.getsignal(signal.SIGTERM) is before
