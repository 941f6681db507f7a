"""Device profiles: what was measured once stays, whoever else writes and whatever breaks."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from latency.acceptance import Reading
from latency.device import DeviceFingerprint
from latency.locking import cache_dir, file_lock
from latency.machine import MachineState
from latency.timings import (
    TimingHeader,
    TimingJournal,
    default_timings_path,
    open_timings,
    read_timings,
)
from latency.turns import computing
from latency.workload import Workload
from search_spaces.architecture import Architecture, EncoderLayer, EncoderStack
from search_spaces.errors import DataError, NasError
from search_spaces.measurement import Measurement
from tests.support import turn_cases

DEVICE = DeviceFingerprint("cpu", "Some Processor", 4, 2, "2.13.0+cpu", "Linux-x86_64")
HEADER = TimingHeader(DEVICE, Workload(1, 16), "abc")


def network(ffn_dim: int) -> Architecture:
    return Architecture(encoder=EncoderStack(8, (EncoderLayer("linear", 1, ffn_dim),)))


def measured(value: float, metric: str = "latency_ms") -> Measurement:
    return Measurement(metric, value, 0.1, 11, "ms", "cpu")


@pytest.fixture
def profile(tmp_path: Path) -> TimingJournal:
    return open_timings(tmp_path / "deep" / "p.jsonl", HEADER)


def test_what_was_recorded_is_there_again_to_the_last_bit(profile: TimingJournal) -> None:
    profile.record([(network(8), measured(1 / 3)), (network(16), measured(0.1))])
    again = open_timings(profile.path, HEADER)
    assert dict(again.entries) == dict(profile.entries)
    assert again.get(network(8).id) == measured(1 / 3)
    assert again.get(network(32).id) is None and len(again) == 2


def test_the_first_value_of_a_network_wins(profile: TimingJournal) -> None:
    other = open_timings(profile.path, HEADER)
    profile.record([(network(8), measured(1)), (network(8), measured(2))])
    other.record([(network(8), measured(3))])
    for view in (profile, other, read_timings(profile.path)):
        assert view.get(network(8).id) == measured(1)


READING = Reading((1.0, 1.1), (2.0, 2.0), MachineState(0.5, 0.1, 0.0, 2600.0), 1.5, "drift")


def test_samples_and_the_state_of_the_machine_stand_beside_a_value(profile: TimingJournal) -> None:
    profile.record([(network(8), measured(1))], {network(8).id: [READING, READING]})
    profile.record([(network(8), measured(2))], {network(8).id: [READING]})
    again = read_timings(profile.path)
    assert again.readings(network(8).id) == (READING, READING)
    assert again.readings(network(16).id) == ()


def test_values_can_be_replaced_and_dropped(profile: TimingJournal) -> None:
    profile.record([(network(size), measured(size)) for size in (8, 16, 32)])
    other = open_timings(profile.path, HEADER)
    other.replace([(network(8), measured(5), [READING])])
    other.drop([network(16).id, "nobody"])
    profile.refresh()
    for view in (profile, other, read_timings(profile.path)):
        assert list(view.entries) == [network(8).id, network(32).id]
        assert view.get(network(8).id) == measured(5)
        assert view.readings(network(8).id) == (READING,)


def test_one_process_measures_for_a_file_at_a_time(profile: TimingJournal) -> None:
    other = open_timings(profile.path, HEADER)
    with profile.timing():
        lock = profile.path.with_name(profile.path.name + ".timing")
        with pytest.raises(NasError, match="another process has held"), file_lock(lock, 0):
            pytest.fail("two at once")
        profile.record([(network(8), measured(1))])
    with other.timing():
        assert other.get(network(8).id) == measured(1)


def test_who_waits_for_another_s_timings_does_not_count_as_computing(
    profile: TimingJournal,
) -> None:
    with computing("cpu"):
        with profile.timing():
            assert not turn_cases.computed_on()
        assert turn_cases.computed_on()


@pytest.mark.parametrize("schema", [1, 2])
def test_files_of_before_can_be_read_and_are_no_cache(profile: TimingJournal, schema: int) -> None:
    old = json.dumps(HEADER.to_json() | {"schema": schema}).encode() + b"\n" + _entry() + b"\n"
    profile.path.write_bytes(old)
    there = read_timings(profile.path)
    assert there.get(network(16).id) == measured(1) and there.readings(network(16).id) == ()
    assert there.header.difference(HEADER) is None
    # The schema has a part in the name under which a cache is looked for.
    assert HEADER.to_json()["schema"] == 3


def test_many_writers_lose_nothing(profile: TimingJournal) -> None:
    def work(number: int) -> None:
        mine = open_timings(profile.path, HEADER)
        for size in range(1, 6):
            mine.record([(network(10 * number + size), measured(size))])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_timings(profile.path)) == 20


@pytest.mark.parametrize("keep", range(1, 160, 7))
def test_a_half_written_last_line_is_dropped_and_mended(profile: TimingJournal, keep: int) -> None:
    profile.record([(network(8), measured(1))])
    whole = profile.path.read_bytes()
    profile.record([(network(16), measured(2))])
    profile.path.write_bytes(profile.path.read_bytes()[: len(whole) + keep])
    again = open_timings(profile.path, HEADER)
    assert list(again.entries) == [network(8).id]
    again.record([])
    assert profile.path.read_bytes() == whole
    again.record([(network(32), measured(3))])
    assert list(read_timings(profile.path).entries) == [network(8).id, network(32).id]


def _entry(**change: Any) -> bytes:
    one, two = network(16), measured(1).to_json()
    whole = {"id": one.id, "architecture": one.to_json(), "measurement": two}
    return json.dumps({**whole, **change}).encode()


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"3",
        b"\xff\xfe",
        b"[" * 100_000,
        _entry(id="000000000000"),
        _entry(architecture={}),
        _entry(measurement={}),
        _entry(measurement={**measured(1).to_json(), "value": -1.0}),
        _entry(measurement={**measured(1).to_json(), "value": float("nan")}),
        _entry(measurement={**measured(1).to_json(), "value": 10**400}),
        _entry(measurement=measured(1, "flops").to_json()),
        _entry(extra=1),
    ],
)
def test_a_damaged_line_is_named(profile: TimingJournal, line: bytes) -> None:
    profile.record([(network(8), measured(1))])
    good = profile.path.read_bytes()
    profile.path.write_bytes(good + line + b"\n" + _entry() + b"\n")
    with pytest.raises(DataError, match=r"p\.jsonl, line 3: .*delete that line"):
        open_timings(profile.path, HEADER)


@pytest.mark.parametrize(
    "line", [b"", b"{", b"{}", b"[]", b'{"schema": 3}', b'{"schema": 1}', b"\x00" * 9]
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "other.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(DataError, match=r"other\.jsonl, line 1: .*delete the file"):
        open_timings(path, HEADER)
    assert path.read_bytes() == line + b"\n"


def test_an_empty_file_becomes_a_profile(tmp_path: Path) -> None:
    (tmp_path / "p").touch()
    assert len(open_timings(tmp_path / "p", HEADER)) == 0
    assert read_timings(tmp_path / "p").header == HEADER


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (replace(HEADER, device=replace(DEVICE, threads=1)), "device"),
        (replace(HEADER, workload=Workload(2, 16)), "workload"),
        (replace(HEADER, settings_digest="abd"), "settings"),
    ],
)
def test_a_profile_of_something_else_is_refused(
    profile: TimingJournal, other: TimingHeader, word: str
) -> None:
    with pytest.raises(DataError, match=f"has {word} .* instead of"):
        open_timings(profile.path, other)
    assert default_timings_path(other) != default_timings_path(HEADER)


def test_a_file_swapped_under_an_open_profile_is_noticed(profile: TimingJournal) -> None:
    profile.path.unlink()
    open_timings(profile.path, replace(HEADER, settings_digest="abd"))
    with pytest.raises(DataError, match="has settings"):
        profile.record([(network(8), measured(1))])


@pytest.mark.parametrize("wrong", [measured(0), measured(-1), measured(1, "flops")])
def test_a_value_that_is_no_latency_is_not_recorded(
    profile: TimingJournal, wrong: Measurement
) -> None:
    with pytest.raises(DataError, match="positive values of latency_ms"):
        profile.record([(network(8), measured(1)), (network(16), wrong)])
    assert len(read_timings(profile.path)) == 0


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read"):
        read_timings(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="cannot read"):
        open_timings(tmp_path, HEADER)


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot write"):
        open_timings(tmp_path / "file" / "p.jsonl", HEADER)


def test_a_held_lock_is_waited_for_only_so_long(tmp_path: Path) -> None:
    with file_lock(tmp_path / "x.lock"), pytest.raises(NasError, match="end it"):  # noqa: SIM117
        with file_lock(tmp_path / "x.lock", timeout_s=0):
            pytest.fail("two at once")


def test_the_cache_folder_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NAS_CACHE_DIR", str(tmp_path))
    assert default_timings_path(HEADER).parent == tmp_path / "profiles"
    monkeypatch.setenv("NAS_CACHE_DIR", "")
    assert "nas-service" in str(cache_dir())
