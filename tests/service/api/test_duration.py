"""How long a search would take is told without submitting it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from nas.request.presets import DistilBudget
from nas.request.spec import Start
from nas.stages import telling
from service.api.space_reader import SpaceReader, answer
from service.api.specs import Search
from service.client import Client
from service.settings import Settings
from tests.support import service_api_cases
from tests.support.pipeline_cases import TINY, spec_of
from tests.support.service_cases import Server, problem

server, alice = service_api_cases.server, service_api_cases.alice
ASKED: dict[str, Any] = {
    "space_toml": TINY,
    "preset": "smoke",
    "objectives": ["quality", "flops"],
    "settings": {"threads": 1, "observations": 12, "evolution.population": 16},
}


def test_it_is_told_and_calibrated_once(server: Server, alice: httpx.Client) -> None:
    alice.timeout = httpx.Timeout(None)
    first = alice.post("/duration", json=ASKED).json()
    assert first["reason"] == first["warning"] == "" and first["seconds"] > 0
    assert "calibration" in first["about"] and "calibration" not in first
    labels = {one["label"]: one["what"] for one in first["stages"]}
    assert labels["Train the supernet"].startswith("4 epochs, ")
    longer = {**ASKED, "settings": ASKED["settings"] | {"supernet.epochs": 400}}
    with Client(server.url, server.token("alice")) as client:
        again = client.duration(**longer).model_dump()
    (before,), (after,) = (
        [one["seconds"] for one in told["stages"] if one["label"] == "Train the supernet"]
        for told in (first, again)
    )
    assert after == pytest.approx(100 * before, rel=0.3)  # exactly but for the checks
    others = [
        {one["label"]: one["seconds"] for one in told["stages"]} | {"Train the supernet": 0}
        for told in (first, again)
    ]
    assert others[0] == pytest.approx(others[1])
    assert alice.get("/jobs").json()["jobs"] == []


def test_a_wrong_request_is_refused_as_ever(alice: httpx.Client) -> None:
    problem(alice.post("/duration", json={**ASKED, "limits": {"params": 1}}), 422, "/limits")


def test_what_is_known_is_not_calibrated_again(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def calibrated(_: object, units: list[str]) -> dict[str, float]:
        asked.append(units)
        return dict.fromkeys(units, 1.0)

    monkeypatch.setattr(telling, "calibrate", calibrated)
    spec = spec_of(tmp_path / "spec")
    first = telling.duration_of(spec, {})
    assert telling.duration_of(spec, first.calibration).seconds == first.seconds
    assert asked[0] and asked[1] == []


def test_a_busy_machine_is_told_whatever_was_calibrated_before(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "calibrate", lambda _, units: dict.fromkeys(units, 1.0))
    spec = spec_of(tmp_path / "spec", objectives=("quality", "latency_ms"))
    asked: dict[str, Any] = {"spec": spec.model_dump_json(), "known": {}}

    class Showing:
        hidden = ()

    for why in ("other work kept 2.0 of 2 cores busy", None):
        monkeypatch.setattr(telling, "why_busy", lambda *_, why=why: why)
        found = answer("duration", asked, Showing())["found"]  # type: ignore[arg-type]
        asked["known"] = found["calibration"]
        assert (f"({why})" in found["warning"]) == (why is not None)


def test_paths_of_the_server_are_not_told(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hiding:
        hidden = ("/secret/",)

    def fails(*_: object) -> None:
        raise OSError("no /secret/file")

    monkeypatch.setattr(telling, "calibrate", fails)
    given = {"spec": spec_of(tmp_path / "spec").model_dump_json(), "known": {}}
    found = answer("duration", given, Hiding())["found"]  # type: ignore[arg-type]
    assert found["reason"] == "calibrating failed: no file"


def test_with_a_checkpoint_updates_are_others_than_without(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, float]] = []

    def told(_: object, kind: str, given: dict[str, Any], wait_s: float) -> dict[str, Any]:
        asked.append(given["known"])
        found = {"seconds": 1.0, "stages": [], "about": "", "reason": ""}
        return found | {"calibration": {"update": len(asked)}}

    monkeypatch.setattr(SpaceReader, "_ask", told)
    reader = SpaceReader(Settings(home=tmp_path))
    alone = spec_of(tmp_path / "spec")
    begun = alone.model_copy(update={"start": Start(folder="/checkpoint", digest="d")})
    budget = alone.budget.model_copy(update={"distil": DistilBudget(updates=7)})
    longer = begun.model_copy(update={"budget": budget})
    for spec in (alone, begun, alone, longer):
        reader.duration(Search(spec.model_dump_json(), "tiny", "tiny", "smoke"))
    assert asked == [{}, {}, {"update": 1}, {"update": 2}]
