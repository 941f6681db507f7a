"""A device's profile as a file: read back whole, and refused in one sentence when it is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latency.workload import Workload
from nas.profiling.device_profile import (
    DeviceProfile,
    dumped,
    genes_digest,
    read_device_profile,
    settings_digest,
    write_device_profile,
)
from search_spaces.errors import DataError, UsageError
from search_spaces.loading import load_space, parse_space
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
    profile.check_space(SPACE, "tiny")
    renamed = parse_space(TINY.replace(f'name = "{SPACE.name}"', 'name = "other"'), "space")
    profile.check_space(renamed, "other")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (load_space("listops"), "settings are not those of listops"),
        (parse_space(edited(("num_layers = [1, 2]", "num_layers = [1]")), "s"), "other choices"),
    ],
)
def test_another_space_is_refused(profile: DeviceProfile, space: Any, message: str) -> None:
    again = r"make one with nas profile --space './a space.toml'$"
    with pytest.raises(UsageError, match=f"{message}.*{again}"):
        profile.check_space(space, "./a space.toml")


def test_digests_tell_settings_from_choices() -> None:
    fewer = parse_space(edited(("num_layers = [1, 2]", "num_layers = [1]")), "space")
    assert settings_digest(fewer) == settings_digest(SPACE)
    assert genes_digest(fewer) != genes_digest(SPACE)


def test_a_workload_is_chosen(profile: DeviceProfile) -> None:
    assert profile.choose(OTHER, {}) == OTHER
    assert profile.choose(None, OTHER.to_json()) == OTHER
    alone = profile.only(profile.workloads[1:])
    assert alone.choose(None, {}) == alone.choose(None, WORKLOAD.to_json())


def test_a_workload_it_does_not_hold_is_refused(profile: DeviceProfile) -> None:
    missing = Workload(batch=1, source_length=4)
    with pytest.raises(UsageError, match="no workload batch=1.*choose --workload batch=4,"):
        profile.choose(missing, {})
    with pytest.raises(UsageError, match="several workloads"):
        profile.choose(None, {})
