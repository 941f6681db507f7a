"""`nas retrain` with several networks, on Ray, and with tuned settings: what is asked for."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from nas.console.app import app
from nas.executors.base import ExecutorSettings
from tests.support import cli_fakes
from tests.support.cli_fakes import LARGE, MIDDLE, SMALL


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cli_fakes.install(monkeypatch)
    cli_fakes.ASKED.clear()
    done = nas("search", "--space", "digits", "--out", "here", "--quiet")
    assert done.exit_code == 0
    cli_fakes.ASKED.clear()


def nas(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def asked() -> list[tuple[ExecutorSettings | None, int | None]]:
    return cli_fakes.ASKED


def trained() -> set[str]:
    return {file.parent.name for file in Path("here/retrained").glob("*/result.json")}


def ray_is(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str, *_: Any) -> Any:
        return object() if name != "ray" or installed else None

    monkeypatch.setattr(importlib.util, "find_spec", found)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ((), {LARGE.id, MIDDLE.id, SMALL.id}),
        (("--top", "2"), {LARGE.id, MIDDLE.id}),
        (("--top", "9"), {LARGE.id, MIDDLE.id, SMALL.id}),
    ],
)
def test_the_front_or_its_best_are_retrained(options: tuple[str, ...], wanted: set[str]) -> None:
    done = nas("retrain", "here", "--pick", "front", *options)
    assert done.exit_code == 0, done.output
    assert trained() == wanted
    assert all(f"Trained {one}" in done.stdout for one in wanted)
    assert asked() == [(ExecutorSettings(), None, None)]


@pytest.mark.parametrize(
    ("picks", "wanted"),
    [
        ((SMALL.id, MIDDLE.id), {SMALL.id, MIDDLE.id}),
        ((SMALL.id[:6], SMALL.id), {SMALL.id}),
        (("front", SMALL.id, "--top", "1"), {LARGE.id, SMALL.id}),
    ],
)
def test_several_are_picked_each_once(picks: tuple[str, ...], wanted: set[str]) -> None:
    named = [part for one in picks[:2] for part in ("--pick", one)]
    before = trained()
    done = nas("retrain", "here", *named, *picks[2:])
    assert done.exit_code == 0, done.output
    assert trained() == before | wanted
    assert asked() == [(ExecutorSettings(), None, None)]


def test_ray_and_trials_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ray_is(True, monkeypatch)
    where = ("--executor", "ray", "--ray-address", "auto", "--workers", "3")
    done = nas("retrain", "here", "--pick", SMALL.id, "--tune", "20", *where)
    assert done.exit_code == 0, done.output
    assert asked() == [(ExecutorSettings("ray", "auto", workers=3), 20, None)]


def test_the_runs_own_settings_need_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    ray_is(False, monkeypatch)
    assert nas("retrain", "here", "--tune", "0").exit_code == 0
    assert asked() == [(ExecutorSettings(), 0, None)]


def test_epochs_are_passed_on() -> None:
    assert nas("retrain", "here", "--epochs", "40").exit_code == 0
    assert asked() == [(ExecutorSettings(), None, 40)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--top", "0"), "greater than or equal to 1"),
        (("--top", "2"), "--top 2 is for --pick front"),
        (("--pick", "front", "--tune", "-1"), "greater than or equal to 0"),
        (("--tune", "5"), "add --executor ray"),
        (("--epochs", "-1"), "greater than or equal to 0"),
        (("--epochs", "2", "--backend", "fairseq"), "--epochs does not go with --backend fairseq"),
        (("--pick", "best", "--pick", "wrong way"), "--pick takes"),
        (
            ("--pick", "best", "--pick", "knee", "--backend", "fairseq"),
            "a second --pick does not go with --backend fairseq",
        ),
        (("--workers", "2"), "--workers is for --executor ray"),
        (("--executor", "ray", "--workers", "0"), "--workers takes a number of at least 1"),
        (("--executor", "ray", "--ray-address", "here"), "--ray-address takes auto"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(
    options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_is(True, monkeypatch)
    before = trained()
    done = nas("retrain", "here", *options)
    told = " ".join(done.stderr.replace("│", " ").split())
    assert done.exit_code == 2 and message in told
    assert trained() == before and asked() == []


@pytest.mark.parametrize("option", [("--tune", "5"), ("--executor", "ray")])
def test_without_ray_it_says_what_to_install(
    option: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_is(False, monkeypatch)
    done = nas("retrain", "here", *option)
    assert done.exit_code == 2 and "pip install 'nas-service[ray]'" in done.stderr
    assert option[0] in done.stderr


def test_a_search_picks_one_network() -> None:
    done = nas("search", "--space", "digits", "--out", "other", "--pick", "front")
    assert done.exit_code == 2 and "--pick takes" in done.stderr and not Path("other").exists()
