"""`nas cache`: what was timed is listed and removed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from latency.acceptance import Reading
from latency.device import DeviceFingerprint
from latency.locking import file_lock
from latency.machine import MachineState
from latency.timings import TimingHeader, default_timings_path, open_timings
from latency.workload import Workload
from latency.yardstick import SpeedRecord
from nas.console.app import app
from nas.console.commands import cache
from nas.run.prepared_texts import read_prepared_texts, remove_prepared_texts
from search_spaces.loading import load_space
from search_spaces.measurement import Measurement
from search_spaces.variation import sample_distinct
from supernet.data.manifest import Manifest, SplitRecord, TokenizerRecord
from tests.layering_rules import loaded

DEVICE = DeviceFingerprint("cpu", "Some [fast] Processor", 4, 1, "2.13.0+cpu", "Linux-x86_64")
BEGAN = 1_790_000_000.0
HOUR = 3600.0


def nas(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["cache", *arguments], env={"COLUMNS": "250"})


def listed() -> list[Any]:
    found: list[Any] = json.loads(nas("list", "--json").stdout)
    return found


def reading(hours: float, disturbed: str = "") -> Reading:
    state = MachineState(1.0, 0.0, 0.0, 2000.0)
    return Reading((1.0, 1.1), (2.0, 2.1), state, BEGAN + hours * HOUR, disturbed)


def timed(batch: int, networks: int = 3) -> Path:
    """A device's profile in the cache, and one of several sessions; four sessions in all."""
    space = load_space("digits")
    rows = space.decode(sample_distinct(space, np.random.default_rng(0), networks))
    header = TimingHeader(DEVICE, Workload(batch, 16), "settings")
    path = default_timings_path(header)
    told = [reading(0), reading(1, "other work"), reading(2)]
    value = Measurement("latency_ms", 1.5, 0.1, 4, "ms")
    open_timings(path, header).record(
        [(one, value) for one in rows], {one.id: told for one in rows}
    )
    held = open_timings(path.with_suffix(".held.jsonl"), header)
    held.record([(rows[0], value)], {rows[0].id: [reading(30)]})
    open_timings(path.with_suffix(".confirmed.jsonl"), header).record([(rows[0], value)])
    return path


def make_older(path: Path) -> None:
    """What versions that kept no samples have left behind."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["schema"] = 1
    for line in lines[1:]:
        del line["readings"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for ending in (".held.jsonl", ".confirmed.jsonl"):
        path.with_suffix(ending).unlink()


def test_how_fast_a_device_has_been_is_shown_and_removed() -> None:
    record = SpeedRecord(DEVICE, "float32")
    record.add([(0.5, BEGAN), (0.51, BEGAN), (0.52, BEGAN + HOUR), (0.9, BEGAN)])
    (row,) = listed()
    assert row["kind"] == "speed" and row["state"] == "used" and row["sessions"] == 4
    assert row["fastest_ms"] == pytest.approx(0.51) and row["device"] == DEVICE.label
    assert "0.51 ms" in nas("list").stdout and "Some [fast] Processor" in nas("list").stdout
    record.path.write_text("{")
    assert listed()[0]["state"] == "damaged" and "is damaged" in nas("list").stdout
    assert nas("clear", record.path.stem[:6]).exit_code == 0
    assert listed() == [] and not record.path.exists()


def test_nothing_was_timed_yet(own_cache: Path) -> None:
    assert listed() == []
    assert str(own_cache) in nas("list").stdout
    assert "nothing is kept" in nas("clear", "--all").stdout
    assert not own_cache.exists()


def test_each_profile_is_a_row() -> None:
    path = timed(32)
    (row,) = listed()
    files = [path, path.with_suffix(".confirmed.jsonl"), path.with_suffix(".held.jsonl")]
    assert sorted(row["files"]) == sorted(map(str, files))
    assert row["size"] == sum(file.stat().st_size for file in files)
    assert (row["id"], row["state"], row["problem"]) == (path.stem, "used", None)
    assert (row["device"], row["networks"]) == (DEVICE.label, 3)
    assert row["workload"] == Workload(32, 16).label
    assert (row["sessions"], row["disturbed_sessions"]) == (4, 1)
    assert (row["first"], row["last"]) == ("2026-09-21T14:13:20+00:00", "2026-09-22T20:13:20+00:00")
    told = nas("list").stdout
    assert path.stem in told and "25%" in told and "Some [fast] Processor" in told


def test_older_files_are_not_used_and_damaged_ones_told() -> None:
    older, damaged = timed(1), timed(2)
    make_older(older)
    damaged.write_text(damaged.read_text() + '{"id": 3}\n')
    states = {row["id"]: row for row in listed()}
    assert states[older.stem]["state"] == "not used (older version)"
    assert states[older.stem]["networks"] == 3 and states[older.stem]["first"] is None
    assert states[damaged.stem]["state"] == "damaged"
    assert "line 5" in states[damaged.stem]["problem"]
    told = nas("list").stdout
    assert "not used (older version)" in told and f"{damaged.stem}: " in told
    assert nas("clear", damaged.stem).stdout.startswith(f"removed {damaged.stem}: damaged")
    assert [row["id"] for row in listed()] == [older.stem]


def test_profiles_are_removed_by_how_their_ids_begin() -> None:
    first, second = timed(1), timed(2)
    done = nas("clear", first.stem[:4], first.stem)
    assert done.exit_code == 0, done.output
    told = f"removed {first.stem}: 3 networks on {DEVICE.label}, {Workload(1, 16).label}; "
    assert done.stdout.startswith(told) and done.stdout.count("removed") == 1
    assert [row["id"] for row in listed()] == [second.stem]
    assert not list(first.parent.glob(f"{first.stem}*.jsonl"))


def test_all_are_removed() -> None:
    paths = [timed(batch) for batch in (1, 2, 3)]
    assert nas("clear", "--all").stdout.count("removed") == 3
    assert listed() == [] and not any(path.exists() for path in paths)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "or --all"),
        (("--all", "0123"), "or --all"),
        (("abc",), "'abc' is too short"),
        (("zzzzzzzz",), "the nearest id is "),
    ],
)
def test_what_cannot_be_removed_is_told(arguments: tuple[str, ...], told: str) -> None:
    path = timed(1)
    done = nas("clear", *arguments)
    assert done.exit_code == 2 and told in done.stderr
    assert path.exists()


def test_several_that_begin_alike_are_not_removed() -> None:
    path = timed(1)
    for ending in ("-aa", "-ab"):
        path.with_stem(path.stem + ending).write_bytes(path.read_bytes())
    done = nas("clear", f"{path.stem}-a")
    assert done.exit_code == 2 and f"{path.stem}-aa, {path.stem}-ab" in done.stderr
    assert nas("clear", path.stem).stdout.count("removed") == 1  # it is one of them as a whole
    assert len(listed()) == 2


def test_what_is_being_timed_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    path = timed(1)
    monkeypatch.setattr(cache, "LOCK_TIMEOUT_S", 0.0)
    with file_lock(path.with_name(path.name + ".timing")):
        done = nas("clear", "--all")
    assert done.exit_code == 1 and "another process has held" in done.stderr
    assert len(listed()[0]["files"]) == 3


def prepared(own_cache: Path, name: str) -> Path:
    """Texts of a checkpoint in the cache, and what a killed try has left beside them."""
    splits = {"train": SplitRecord(examples=7, counts={}, longest={}, dropped={}, truncated=0)}
    folder = own_cache / "data" / name
    folder.mkdir(parents=True)
    (folder / "train.tokens.bin").write_bytes(bytes(100))
    tokenizer = TokenizerRecord(kind="tokenizer_json", vocab_size=9)
    manifest = Manifest(
        task="embedding",
        content="embeddings",
        settings={},
        request="0" * 64,
        inputs=(),
        tokenizer=tokenizer,
        token_dtype="uint16",
        width=4,
        splits=splits,
        files={},
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    left = own_cache / "data" / f".{name}.host-123.tmp"
    left.mkdir()
    (left / "train.tokens.bin").write_bytes(bytes(50))
    return folder


def test_prepared_texts_are_listed_and_removed(own_cache: Path) -> None:
    path, folder = timed(1), prepared(own_cache, "mine-0123456789ab")
    times, texts = listed()
    assert (times["kind"], texts["kind"], texts["id"]) == ("times", "texts", folder.name)
    assert (texts["state"], texts["task"], texts["examples"]) == ("used", "embedding", 7)
    size = (folder / "manifest.json").stat().st_size
    assert texts["size"] == 150 + size and len(texts["files"]) == 2
    assert folder.name in nas("list").stdout
    told = nas("clear", "mine").stdout
    assert told.startswith(f"removed {folder.name}: 7 texts for the task embedding; ")
    assert list((own_cache / "data").glob("*mine*tmp")) == [] and not folder.exists()
    assert [row["id"] for row in listed()] == [path.stem]


def test_unfinished_and_damaged_texts_are_told(own_cache: Path) -> None:
    damaged, unfinished = (prepared(own_cache, name) for name in ("damaged", "unfinished"))
    (damaged / "manifest.json").write_text("{}")
    shutil.rmtree(unfinished)
    states = {row["id"]: row for row in listed()}
    assert states["damaged"]["state"] == "damaged" and states["damaged"]["problem"]
    assert states["unfinished"]["state"] == "unfinished" and states["unfinished"]["size"] == 50
    assert nas("clear", "--all").stdout.count("removed") == 2 and listed() == []


def test_texts_that_are_prepared_meanwhile_are_listed_and_removed(own_cache: Path) -> None:
    folder = prepared(own_cache, "mine")
    (left,) = (own_cache / "data").glob(".mine.*.tmp")
    shutil.rmtree(folder)
    (left / "gone").symlink_to("elsewhere")  # is listed and is not there
    (found,) = read_prepared_texts()
    assert (found.state, found.size, listed()[0]["size"]) == ("unfinished", 50, 50)
    left.rename(folder)
    remove_prepared_texts(found, cache.LOCK_TIMEOUT_S)
    assert not folder.exists() and listed() == []


def test_texts_that_are_being_prepared_stay(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepared(own_cache, "mine")
    monkeypatch.setattr(cache, "LOCK_TIMEOUT_S", 0.0)
    with file_lock(own_cache / "data" / "mine.lock"):
        assert nas("clear", "--all").exit_code == 1
    assert folder.exists()


def test_looking_at_the_cache_does_not_load_torch() -> None:
    timed(1)
    for command in ("list", "clear --all"):
        code = f"from nas.console.app import app\ntry: app(['cache', *{command.split()!r}])\n"
        assert "torch" not in loaded("-c", code + "except SystemExit: pass")
