"""The commands of the service, called as a user calls them."""

from __future__ import annotations

import csv
import io
import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nas.console import plugins
from nas.console.app import app
from search_spaces import load_space
from search_spaces.loading import dump_space
from service import logs
from service.client import Client
from service.settings import Settings, default_home
from service.worker.runner import Outcome
from tests.support.cli_fakes import own_entry_points
from tests.support.service_cases import Server

COMMANDS = own_entry_points()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture(autouse=True)
def environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands as pyproject.toml names them, and where the service is."""
    monkeypatch.setattr(plugins, "entry_points", lambda group: COMMANDS)
    monkeypatch.setenv("NAS_SERVER", server.url)
    monkeypatch.setenv("NAS_TOKEN", server.token("alice"))
    monkeypatch.setenv("NAS_HOME", str(server.settings.home))
    monkeypatch.setenv("COLUMNS", "200")


def nas(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def submitted(*arguments: str) -> str:
    done = nas("submit", "--space", "digits", "--preset", "smoke", *arguments)
    assert done.exit_code == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("command", [point.name for point in COMMANDS])
def test_every_command_has_a_help_with_an_example(command: str) -> None:
    done = nas(command, "--help")
    assert done.exit_code == 0
    assert f"Example: nas {command}" in done.stdout
    assert command in nas("--help").stdout


def test_a_job_is_submitted_listed_watched_and_shown(server: Server) -> None:
    job = submitted("--title", "from the shell", "--set", "supernet.epochs=3")
    listed = nas("jobs", "--text", "the shell")
    assert job in listed.stdout
    server.work()
    watched = nas("watch", job)
    assert watched.exit_code == 0
    assert "Train the supernet" in watched.stderr
    assert "succeeded" in watched.stderr
    shown = nas("front", job)
    assert "Pareto front of quality and latency_ms" in shown.stdout


def test_how_a_job_has_ended_is_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    job = submitted()
    nas("cancel", job)
    watched = nas("watch", job)
    assert watched.exit_code == 1 and f"the job {job} was cancelled" in watched.stderr
    waiting = submitted()
    monkeypatch.setattr(Client, "follow", lambda *_: iter(()))  # a stream that says nothing of it
    broken = nas("watch", waiting)
    assert broken.exit_code == 1
    assert f"the job {waiting} is queued: nas watch {waiting} follows it again" in broken.stderr
    server.work()
    assert "succeeded" in nas("watch", waiting).stderr


def test_a_day_that_there_is_not_is_told_with_its_option() -> None:
    wrong = nas("jobs", "--since", "2026-13-01")
    assert wrong.exit_code == 2
    assert "--since is '2026-13-01': month must be in 1..12" in wrong.stderr
    assert nas("jobs", "--since", "2026-12-01").exit_code == 0


@pytest.mark.parametrize("pick", ["cheapest", "latency_ms<=1e9,params<=1e9"])
def test_every_form_of_a_pick_is_submitted(server: Server, pick: str) -> None:
    job = server.store.jobs.get(submitted("--pick", pick))
    assert job is not None and job.request["pick"] == pick


def test_scripts_get_json_and_csv(server: Server) -> None:
    job = submitted()
    server.work()
    front = json.loads(nas("front", job, "--json").stdout)
    rows = list(csv.DictReader(io.StringIO(nas("front", job, "--csv").stdout)))
    assert [row["id"] for row in rows] == [entry["id"] for entry in front["front"]]
    lines = [json.loads(line) for line in nas("watch", job, "--json").stdout.splitlines()]
    assert lines[0]["event"] == "StateChanged"
    assert lines[-1] == {"state": "succeeded"}
    assert job in [one["id"] for one in json.loads(nas("jobs", "--json").stdout)]


def test_a_front_is_shown_before_it_is_final(server: Server) -> None:
    job = submitted()
    assert "not begun" in nas("front", job).stderr
    server.work()
    (server.settings.runs / job / "pareto.json").unlink()
    told = nas("front", job).stdout
    assert "So far" in told and "(predicted)" in told


def test_a_front_of_another_device_beside_a_checkpoint_is_shown(server: Server) -> None:
    job = submitted()
    server.work()
    file = server.settings.runs / job / "pareto.json"
    data = json.loads(file.read_text())
    for entry in data["front"]:
        entry["predicted"]["latency_ms"] = entry["measured"].pop("latency_ms")
    more = {"schema": 5, "predicted_for": {"latency_ms": "a board"}, "checkpoint": data["front"][0]}
    file.write_text(json.dumps(data | more))
    told = json.loads(nas("front", job, "--json").stdout)
    assert told["predicted_for"] == {"latency_ms": "a board"}
    assert told["checkpoint"] == data["front"][0]
    shown = nas("front", job)
    assert shown.exit_code == 0 and "Pareto front of quality and latency_ms" in shown.stdout


def test_a_file_of_ones_own_is_submitted(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(dump_space(load_space("digits")).replace('"digits"', '"mine"', 1))
    done = nas("submit", "--space", str(file), "--dataset", "digits", "--preset", "smoke")
    assert done.exit_code == 0, done.stderr
    job = server.store.jobs.get(done.stdout.strip())
    assert job is not None
    assert job.space == "mine"


def test_a_failure_is_told_by_the_exit_code_too(server: Server) -> None:
    job = submitted()
    server.runner.outcome = Outcome(ok=False, error="the loss became NaN")
    server.work()
    server.runner.outcome = Outcome(ok=True)
    done = nas("watch", job, "--quiet")
    assert done.exit_code == 1
    assert "has failed: the loss became NaN" in done.stderr


def test_a_job_is_cancelled(server: Server) -> None:
    job = submitted()
    assert nas("cancel", job).stdout == f"{job} cancelled\n"
    assert nas("cancel", "../jobs").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("jobs", "--token", "wrong"), 2, "NAS_TOKEN"),
        (("jobs", "--server", "http://127.0.0.1:1"), 1, "does not answer"),
        (("jobs", "--server", "http://127.0.0.1:99999"), 2, "names port 99999: give one from 1"),
        (("jobs", "--server", "http://127.0.0.1:x"), 2, "--server, or NAS_SERVER, cannot be used"),
        (("jobs", "--server", "nowhere"), 2, "an address such as http://127.0.0.1:8321"),
        (("jobs", "--server", "localhost:8321"), 2, "given 'localhost:8321'"),
        (("submit", "--space", "digitz"), 2, "did you mean 'digits'"),
        (("submit", "--space", "./none.toml"), 2, "no such file"),
        (("front", "0" * 20), 2, "no job"),
        (("watch", "0" * 20), 2, "no job"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments: tuple[str, ...], code: int, words: str) -> None:
    done = nas(*arguments)
    assert done.exit_code == code
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "address", ["127.0.0.1:8321", "ftp://127.0.0.1", "http://", "http://:8321"]
)
def test_a_variable_that_is_no_address_is_wrong_use(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("NAS_SERVER", address)
    done = nas("jobs")
    assert done.exit_code == 2 and f"given '{address}'" in done.stderr


@pytest.mark.parametrize(
    ("stray", "words"),
    [
        ("\n", "holds a line feed"),
        ("\r", "holds a carriage return"),
        (" ", "holds a space"),
        ("é", "or one beyond ASCII"),
    ],
)
def test_what_got_into_a_token_is_told_without_it(
    server: Server, monkeypatch: pytest.MonkeyPatch, stray: str, words: str
) -> None:
    secret = server.token("alice")
    monkeypatch.setenv("NAS_TOKEN", secret + stray)
    for done in (nas("jobs"), nas("jobs", "--token", secret + stray)):
        assert done.exit_code == 2 and words in done.stderr
        assert secret not in done.stderr and "answer" not in done.stderr


def test_a_checkpoint_is_not_called_by_its_folder_when_another_name_is_given(
    tmp_path: Path,
) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    done = nas("checkpoints", "upload", str(tmp_path), "--name", "")
    assert done.exit_code == 2 and "name" in done.stderr.splitlines()[-1]
    assert tmp_path.name not in done.stderr


def test_tokens_are_made_listed_and_revoked(server: Server) -> None:
    made = nas("token", "create", "--name", "carol", "--role", "reader", "--expires", "30d")
    secret = made.stdout.splitlines()[-1]
    assert made.stdout == secret + "\n"
    assert server.client_of(secret).get("/jobs").status_code == 200
    (token,) = (
        one for one in json.loads(nas("token", "list", "--json").stdout) if one["name"] == "carol"
    )
    until = datetime.fromtimestamp(token["expires_at"], UTC).strftime("%Y-%m-%d %H:%M UTC")
    assert "carol" in (listed := nas("token", "list").stdout) and until in listed
    assert f"good until {until}; it is shown once" in made.stderr
    assert nas("token", "revoke", token["id"]).exit_code == 0
    assert server.client_of(secret).get("/jobs").status_code == 401
    assert nas("token", "revoke", token["id"]).exit_code == 2


def test_where_the_home_is_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.serving.serve", lambda settings, _, tell: tell(settings, None))
    served = nas("serve", "--home", str(tmp_path))
    assert served.stderr.splitlines()[1] == f"Home    {tmp_path.resolve()}"
    told = nas("serve", "--help").stdout.replace("│", "")
    assert "".join(str(default_home()).split()) in "".join(told.split())


def test_open_doors_are_refused() -> None:
    done = nas("serve", "--no-auth", "--host", "0.0.0.0")
    assert done.exit_code == 2
    assert "loopback" in done.stderr


@pytest.mark.parametrize(
    ("typed", "set_to", "words"),
    [("99999", None, "--port is 99999"), (None, "99998", "NAS_PORT is '99998'")],
)
def test_a_port_that_cannot_be_is_told_as_it_was_given(
    monkeypatch: pytest.MonkeyPatch, typed: str | None, set_to: str | None, words: str
) -> None:
    if set_to is not None:
        monkeypatch.setenv("NAS_PORT", set_to)
    done = nas("serve", *(() if typed is None else ("--port", typed)))
    assert done.exit_code == 2 and words in done.stderr


def test_a_port_that_is_taken_is_told(server: Server, tmp_path: Path) -> None:
    port = server.url.rpartition(":")[2]
    done = nas("serve", "--home", str(tmp_path), "--port", port, "--workers", "0")
    assert done.exit_code == 2
    assert f"port {port}" in done.stderr.splitlines()[-1]


def test_a_worker_begins_without_evaluators_that_other_jobs_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Settings] = []
    monkeypatch.setattr("service.worker.worker.run_worker", begun.append)
    monkeypatch.setattr(logs, "log_to_stderr", lambda: None)
    monkeypatch.setenv("NAS_EVALUATORS", f"rig=table:{tmp_path / 'gone.csv'}:loss")
    assert nas("worker").exit_code == 0 and len(begun) == 1


HOMES = (("serve", "--port", "0"), ("worker",), ("worker", "--check"), ("token", "list"))


@pytest.mark.parametrize("arguments", HOMES, ids=" ".join)
def test_what_is_no_home_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(logs, "log_to_stderr", lambda: None)
    monkeypatch.setattr("service.serving.log_to_stderr", lambda: None)
    (tmp_path / "service.db").write_text("junk\n")
    for home, words in (
        (tmp_path, f"{tmp_path / 'service.db'} is no SQLite database"),
        (tmp_path / "service.db", f"needs the folder {tmp_path / 'service.db'}, but a file"),
        (tmp_path / "service.db" / "x", f"needs the folder {tmp_path / 'service.db' / 'x'}, but"),
    ):
        done = nas(*arguments, "--home", str(home))
        assert done.exit_code == 2 and words in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", HOMES, ids=" ".join)
def test_a_home_that_was_moved_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(logs, "log_to_stderr", lambda: None)
    monkeypatch.setattr("service.serving.log_to_stderr", lambda: None)
    old, new = tmp_path / "old", tmp_path / "new"
    assert nas("token", "list", "--home", str(old)).exit_code == 0
    (old / "runs" / "some").mkdir()
    old.rename(new)
    done = nas(*arguments, "--home", str(new))
    assert done.exit_code == 2 and f"{new} was at {old}, and its jobs" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_check_names_the_workers_of_this_machine(server: Server) -> None:
    for worker in server.store.workers.alive(20.0):
        server.store.workers.leave(worker.name)
    none = nas("worker", "--check")
    assert none.exit_code == 1 and "nas worker starts one" in none.stderr
    server.store.workers.beat("worker-1", None, "elsewhere")
    assert nas("worker", "--check").exit_code == 1
    server.store.workers.beat("worker-2", None, socket.gethostname())
    found = nas("worker", "--check")
    for name in ("worker-1", "worker-2"):
        server.store.workers.leave(name)
    assert found.exit_code == 0 and found.stdout.strip() == "worker-2"
