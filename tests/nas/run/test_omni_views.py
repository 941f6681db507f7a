"""Views of omni layers as files, on the screen and in the report; measured in a tiny real run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nas.console.app import app
from nas.report.page import render
from nas.results.reader import read_contents
from nas.run.events import Event
from nas.run.folder import RunFolder
from nas.run.layout import attention_file, result_file
from nas.run.omni_views import OmniViews, check_omni, read_views
from nas.search.front import read_front
from search_spaces.errors import DamagedRunError, UsageError
from search_spaces.omni import omni_layers
from tests.support.pipeline_cases import TINY, finished
from tests.support.run_fixture import finished_run, look_into, retrain, rewrite
from tests.support.supernet_cases import network

ID = "0123456789ab"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return finished_run(tmp_path / "digits-1", seed=4)


def test_views_are_read_as_they_were_written(run: RunFolder) -> None:
    assert read_views(run, ID) is None
    look_into(run, ID)
    views = read_views(run, ID)
    assert views is not None
    assert OmniViews.from_json(json.loads(json.dumps(views.to_json()))) == views
    assert views.layers[0].attended == pytest.approx((0.35, 0.3, 0.35))
    assert views.layers[0].by_head[0] == pytest.approx((0.5, 0.3, 0.2))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), 2),
        (("weights",), "guessed"),
        (("layers",), []),
        (("layers", 0, "stack"), "both"),
        (("layers", 0, "sources"), [2]),
        (("layers", 0, "pooling"), [0.5, 0.5]),
        (("layers", 0, "attention", 0, 0, 1), 1.5),
        (("layers", 0, "attention", 0, 0, 1), "x"),
        (("layers", 0, "attention", 0, 0, 1), None),
        (("maps", 0, "layer"), 7),
        (("maps", 0, "pooling"), [[0.1]]),
    ],
)
def test_a_damaged_file_is_named(run: RunFolder, path: Any, value: Any) -> None:
    look_into(run, ID)
    rewrite(run, attention_file(ID), path, value)
    with pytest.raises(DamagedRunError, match=f"attention/{ID}.json.*--attention {ID}"):
        read_views(run, ID)


def test_an_empty_file_is_damaged(run: RunFolder) -> None:
    look_into(run, ID)
    (run.path / attention_file(ID)).write_text("")
    with pytest.raises(DamagedRunError):
        read_views(run, ID)


def test_networks_that_have_something_to_show() -> None:
    deep, flat = network("softmax", "omni"), network("omni", "softmax")
    check_omni(deep, 3)
    with pytest.raises(UsageError, match=f"{flat.id} has no omnidirectional layer"):
        check_omni(flat, 3)


# -- the report -----------------------------------------------------------------------------------


def test_the_report_draws_what_was_measured(run: RunFolder) -> None:
    before = render(read_contents(run))
    assert "No network was looked into" in before
    look_into(run, ID)
    page = render(read_contents(run))
    assert "No network was looked into" not in page
    assert f'id="omni-{ID}"' in page
    for words in ("embeddings 35.0", "kept by pooling", "image 1", "head 2"):
        assert words in page, words


# -- the command ----------------------------------------------------------------------------------


def nas(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def omni_id(run: RunFolder, *, deep: bool) -> str:
    span = run.spec.space.model.omni_span
    entries = read_front(run).entries
    return next(e.id for e in entries if bool(omni_layers(e.architecture, span)) is deep)


def test_the_command_shows_what_was_measured(run: RunFolder) -> None:
    identity = omni_id(run, deep=True)
    run.forget(f"retrain-{identity}", ())
    look_into(run, identity)
    shown = nas("show", str(run.path), "--attention", identity)
    assert "encoder layer 3 looks at" in shown.stdout
    assert "70.0 %" in shown.stdout
    told = json.loads(nas("show", str(run.path), "--attention", identity, "--json").stdout)
    assert told["layers"][0]["pooling"] == [0.2, 0.1, 0.7]


def test_views_of_weights_that_were_replaced_are_measured_anew(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = omni_id(run, deep=True)
    front = read_front(run)
    asked: list[str] = []
    entry = next(one for one in front.entries if one.id == identity)
    other = next(one for one in front.entries if one.id != identity)

    def measure(folder: RunFolder, how: str) -> list[Event]:
        asked.append(how)
        look_into(folder, how)
        return []

    def shown() -> bool:
        assert nas("show", str(run.path), "--attention", identity).exit_code == 0
        return f'id="omni-{identity}"' in render(read_contents(run))

    monkeypatch.setattr("nas.stages.attention.measure_views", measure)
    retrain(run, entry)
    assert shown() and shown() and asked == [identity]
    retrain(run, other)
    assert shown() and asked == [identity]
    run.finish(f"retrain-{identity}", "digest", [result_file(identity)], 30.0)  # of other settings
    assert read_views(run, identity) is None
    assert f'id="omni-{identity}"' not in render(read_contents(run))
    assert shown() and asked == [identity, identity]


def test_the_command_refuses_what_has_nothing_to_show(run: RunFolder) -> None:
    flat = nas("show", str(run.path), "--attention", omni_id(run, deep=False))
    assert (flat.exit_code, "no omnidirectional layer" in flat.stderr) == (2, True)
    both = nas("show", str(run.path), "--attention", "best", "--features")
    assert (both.exit_code, "different things" in both.stderr) == (2, True)


def test_a_run_without_weights_is_told_so(run: RunFolder) -> None:
    identity = omni_id(run, deep=True)
    run.forget(f"retrain-{identity}", ())
    shown = nas("show", str(run.path), "--attention", identity)
    assert (shown.exit_code, "is gone" in shown.stderr) == (2, True)
    assert not (run.path / attention_file(identity)).exists()


# -- real weights ---------------------------------------------------------------------------------

DEEP = f"""{TINY}
[encoder.layer.0]
attention = ["softmax", "linear"]

[encoder.layer.1]
attention = ["omni"]
""".replace("num_layers = [1, 2]", "num_layers = [2]")


def test_a_real_run_is_looked_into_with_the_best_weights_it_has(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", DEEP, seed=1)
    ids = [entry.id for entry in read_front(run).entries]
    trained = next(one for one in ids if run.record(f"retrain-{one}") is not None)
    other = next(one for one in ids if one != trained)
    for identity, weights in ((trained, "trained from scratch"), (other, "inherited")):
        assert nas("show", str(run.path), "--attention", identity).exit_code == 0
        views = read_views(run, identity)
        assert views is not None and (views.weights, views.examples) == (weights, 64)
        assert [layer.sources for layer in views.layers] == [(0, 1)]
        assert sum(views.layers[0].pooling) == pytest.approx(1.0, abs=1e-5)
        assert len(views.maps) == 3
        assert run.damage(run.record(f"attention-{identity}")) is None  # type: ignore[arg-type]
    assert f'id="omni-{other}"' in (run.path / "report.html").read_text("utf-8")


def test_views_follow_better_weights_and_damage(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", DEEP, seed=1)
    other = next(e.id for e in read_front(run).entries if not run.record(f"retrain-{e.id}"))
    assert nas("show", str(run.path), "--attention", other).exit_code == 0
    (run.path / attention_file(other)).write_text("{}")
    assert nas("show", str(run.path), "--attention", other).exit_code == 0
    assert nas("retrain", str(run.path), "--pick", other, "--quiet").exit_code == 0
    assert nas("show", str(run.path), "--attention", other).exit_code == 0
    views = read_views(run, other)
    assert views is not None and views.weights == "trained from scratch"
