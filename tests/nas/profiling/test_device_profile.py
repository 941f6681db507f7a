"""A device's profile as a file: read back whole, and refused in one sentence when it is wrong."""

from __future__ import annotations

import html
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latency.timing import HostShare
from latency.workload import Workload
from nas.console.commands.profile import summary
from nas.profiling.device_profile import (
    DeviceProfile,
    dumped,
    genes_digest,
    read_device_profile,
    settings_digest,
    write_device_profile,
)
from nas.profiling.report import card_sentence
from nas.report.profile_page import render_profile
from search_spaces.errors import DataError, UsageError
from search_spaces.loading import load_space, parse_space
from search_spaces.space import SearchSpace
from tests.support.pipeline_cases import TINY, edited
from tests.support.profile_cases import SPACE, WORKLOAD, made_profile

OTHER = Workload(batch=8, source_length=4)


@pytest.fixture(scope="module")
def profile() -> DeviceProfile:
    return made_profile(WORKLOAD, OTHER)


def test_a_file_is_read_back(profile: DeviceProfile, tmp_path: Path) -> None:
    file = tmp_path / "board.json"
    write_device_profile(file, profile)
    again = read_device_profile(file)
    assert again.to_json() == profile.to_json() and again.digest == profile.digest
    features = np.zeros((1, len(profile.workloads[0].latency.to_json()["features"][0])))
    one, two = (p.workloads[0].latency.predict(features) for p in (again, profile))
    np.testing.assert_array_equal(one, two)


def test_what_is_known_of_a_card_is_read_back_and_told(profile: DeviceProfile) -> None:
    first, *others = profile.workloads
    old = first.to_json()
    assert "host" not in old and "celsius" not in old["sessions"][0]  # so that digests stay
    assert card_sentence(first) is None
    hot = replace(
        first.sessions[-1], clock_mhz=1980.0, celsius=61.0, throttled="hw thermal slowdown"
    )
    on_card = replace(first, host=HostShare(0.9, 1.2), sessions=(*first.sessions[:-1], hot))
    made = replace(profile, workloads=(on_card, *others))
    again = DeviceProfile.from_json(json.loads(dumped(made)))
    assert again.digest == made.digest and again.workloads[0].host == HostShare(0.9, 1.2)
    assert again.workloads[0].sessions == on_card.sessions
    sentence = (
        "batch 4, source 4, float32, forward: of 1.2 ms of the reference network the host takes "
        f"0.9 ms (75%), the card was at 1980 MHz and 61 °C at last, it throttled in 1 of "
        f"{len(first.sessions)} sessions"
    )
    assert card_sentence(again.workloads[0]) == sentence
    assert sentence in html.unescape(render_profile(made, SPACE))
    assert summary(made)["workloads"][0]["host"] == {"host_ms": 0.9, "total_ms": 1.2}
    assert "host" not in summary(made)["workloads"][1]


# Where a file is changed, and into what; None for a key that is taken out.
CHANGES: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "has schema 99; this version reads 1": (("schema",), 99),
    "no device profile made by nas profile": (("kind",), None),
    "threads: field required": (("device", "threads"), None),
    "holds no workload": (("workloads",), []),
    "no measured network": (("workloads", 0, "measured"), []),
    "is not that of its architecture": (("workloads", 0, "measured", 0, "id"), "0" * 12),
    "no positive time": (("workloads", 0, "measured", 0, "latency", "value"), -1.0),
    "could not convert": (("workloads", 0, "measured", 0, "peak_memory_mb"), "much"),
    "needs at least|damaged": (("workloads", 0, "predictors", "latency_ms", "ms"), []),
    "'sessions' is missing": (("workloads", 0, "sessions"), None),
    "damaged: no times": (("workloads", 0, "host"), {"host_ms": 1.0, "total_ms": 0.0}),
    "damaged: cannot convert float infinity": (("seed",), math.inf),
    "damaged latency predictor .int too large": (
        ("workloads", 0, "predictors", "latency_ms", "ms", 0),
        10**400,
    ),
    "int too large to convert": (
        ("workloads", 0, "predictors", "peak_memory_mb", "features", 0, 0),
        10**400,
    ),
}


def broken(profile: DeviceProfile, change: str) -> Any:
    (*way, last), value = CHANGES[change]
    data = part = json.loads(dumped(profile))
    for step in way:
        part = part[step]
    part[last] = value
    if value is None:
        del part[last]
    return data


@pytest.mark.parametrize("change", CHANGES)
def test_a_wrong_file_is_one_sentence(profile: DeviceProfile, change: str, tmp_path: Path) -> None:
    file = tmp_path / "board.json"
    file.write_text(json.dumps(broken(profile, change)), encoding="utf-8")
    with pytest.raises(DataError, match=change) as error:
        read_device_profile(file)
    assert str(file) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"kind": 3}', '"x"', "[" * 100_000])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "board.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="cannot be used"):
        read_device_profile(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="make one with nas profile"):
        read_device_profile(tmp_path / "none.json")
    with pytest.raises(DataError, match="cannot read"):
        read_device_profile(tmp_path)


def test_its_own_space_is_taken_under_another_name(profile: DeviceProfile) -> None:
    profile.check_space(SPACE, "make one")
    renamed = parse_space(TINY.replace(f'name = "{SPACE.name}"', 'name = "other"'), "space")
    profile.check_space(renamed, "make one")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (load_space("listops"), "settings are not those of listops"),
        (parse_space(edited(("num_layers = [1, 2]", "num_layers = [1]")), "s"), "other choices"),
    ],
)
def test_another_space_is_refused(profile: DeviceProfile, space: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"{message}.*: make one$"):
        profile.check_space(space, "make one")


def test_digests_tell_settings_from_choices() -> None:
    fewer = parse_space(edited(("num_layers = [1, 2]", "num_layers = [1]")), "space")
    assert settings_digest(fewer) == settings_digest(SPACE)
    assert genes_digest(fewer) != genes_digest(SPACE)


def with_workload(workload: Workload) -> SearchSpace:
    return replace(SPACE, workload=workload.to_json())


UNTIMED = replace(SPACE, workload={})


def test_a_workload_is_chosen(profile: DeviceProfile) -> None:
    assert profile.choose(OTHER, UNTIMED) == OTHER
    assert profile.choose(None, with_workload(OTHER)) == OTHER
    alone = profile.only(profile.workloads[1:])
    assert alone.choose(None, UNTIMED) == alone.choose(None, with_workload(WORKLOAD)) == OTHER


def test_a_workload_it_does_not_hold_is_refused(profile: DeviceProfile) -> None:
    missing = Workload(batch=1, source_length=4)
    with pytest.raises(UsageError, match="no workload batch=1.*choose --workload batch=4,"):
        profile.choose(missing, UNTIMED)
    with pytest.raises(UsageError, match="several workloads"):
        profile.choose(None, UNTIMED)


TEXTS = load_space("python-source")
DECODE = Workload(batch=4, source_length=64, dtype="bfloat16", mode="decode")
PREFILL = replace(DECODE, mode="prefill")


@pytest.mark.parametrize("held", [(DECODE,), (DECODE, PREFILL)])
def test_a_timing_behind_a_context_leaves_the_source_as_it_is(held: tuple[Workload, ...]) -> None:
    chosen = made_profile(*held).choose(None, TEXTS)
    behind = {"batch": 4, "dtype": "bfloat16", "context": 64}
    assert chosen.to_json() == {"source": TEXTS.workload["source"], "mode": "forward", **behind}


def test_several_contexts_are_named_as_they_can_be_asked_for() -> None:
    held = made_profile(DECODE, replace(PREFILL, source_length=32))
    with pytest.raises(UsageError, match=r"no workload batch=1,source=512,") as error:
        held.choose(None, TEXTS)
    *_, first, second = re.findall(r"batch=\S+", str(error.value))
    for option, context in ((first.rstrip(","), 64), (second, 32)):
        asked = Workload.parse(option, TEXTS.workload)
        assert (asked.context, asked.source_length) == (context, 512)
        assert held.choose(asked, TEXTS) == asked
    alone = made_profile(DECODE).choose(None, replace(TEXTS, workload={}))
    assert (alone.source_length, alone.context) == (64, 64)  # nothing else tells a length


def test_behind_a_source_of_the_longest_text_is_one_token() -> None:
    space = load_space("lm-small")
    timed = Workload(1, 4096), Workload(1, 4095, mode="decode")
    whole = made_profile(*timed)
    own = replace(whole, settings=settings_digest(space), genes=genes_digest(space))
    assert own.attached(space, "", None).workloads == timed
