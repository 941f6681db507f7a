"""Data sets that are uploaded: in parts, resumed, checked by a process, and named in a search."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest
from filelock import FileLock
from starlette.requests import ClientDisconnect

from search_spaces.loading import dump_space, load_space
from search_spaces.settings import TokenInput
from service import data_uploads
from service.api.problems import ProblemError
from service.api.routes.uploads import PIECE, write_pieces
from service.api.thread_pools import ThreadPools
from service.auth import Role
from service.dashboard.submission import genes
from service.data_preparing import prepare_file
from service.data_uploads import MOST_FAILED, DataUploads
from service.jobs.retention import _sweep
from service.settings import GIB, Settings
from service.uploads import DATA_IDLE_S, FACTS_FILE, LEFT_FREE, LOCK_FILE, Upload, UploadError
from supernet.data.manifest import read_manifest
from tests.support import service_api_cases
from tests.support.dashboard_cases import browser, said
from tests.support.pipeline_cases import spec_of
from tests.support.service_cases import Server, problem, submission

server, alice = service_api_cases.server, service_api_cases.alice

LINES = b"".join(
    json.dumps({"text": f"{word} {number}", "label": word}).encode() + b"\n"
    for number in range(60)
    for word in ("yes", "no")
)
DIGITS = load_space("digits")
MAILS: dict[str, Any] = {"name": "mails", "file": "mails.jsonl", "task": "classification"}


def begun(client: httpx.Client, content: bytes = LINES, **values: Any) -> str:
    answer = client.post("/data", json={**MAILS, "bytes": len(content), **values})
    assert answer.status_code == 201, answer.text
    return f"/data/{answer.json()['id']}"


def put(client: httpx.Client, place: str, content: bytes, offset: int = 0) -> httpx.Response:
    return client.put(f"{place}/content", params={"offset": offset}, content=content)


def ended(client: httpx.Client, place: str) -> dict[str, Any] | None:
    """What an upload has become; None once it is a data set."""
    checked()
    answer = client.get(place)
    if answer.status_code == 404:
        return None
    assert answer.json()["state"] != "checking"
    return dict(answer.json())


def checked() -> None:
    """Wait for the threads of this process in which uploads are checked."""
    for thread in threading.enumerate():
        if thread.name.startswith(data_uploads.CHECKING):
            thread.join()


# -- whole ----------------------------------------------------------------------------------------


def test_a_file_comes_in_parts_and_is_searched_with(server: Server, alice: httpx.Client) -> None:
    place = begun(alice)
    assert put(alice, place, LINES[:1000]).json()["received"] == 1000
    assert "go on there" in problem(put(alice, place, LINES[2000:], 2000), 409)
    problem(alice.post(f"{place}/finish"), 409)
    put(alice, place, LINES[900:2000], 900)  # what came twice is written once
    assert put(alice, place, LINES[2000:], 2000).json()["received"] == len(LINES)
    assert alice.post(f"{place}/finish").status_code == 202
    assert ended(alice, place) is None
    (found,) = alice.get("/data").json()["data"]
    assert (found["name"], found["task"], found["content"]) == ("mails", "classification", "texts")
    assert "mails" in [one["name"] for one in alice.get("/datasets").json()]
    wrong = alice.post("/jobs", json={"space": "listops", "data": "mails"})
    assert problem(wrong, 422, "/data").endswith(
        "you uploaded: give it with dataset instead of data"
    )
    bob = server.client("bob")
    assert "mails" not in [one["name"] for one in bob.get("/datasets").json()]
    space = mail_space(server)
    asked = {"space": space.stem, "preset": "smoke", "dataset": "mails"}
    job = alice.post("/jobs", json=asked)
    assert (job.status_code, job.json()["dataset"]) == (201, "mails")
    spec = json.loads(server.store.jobs.spec(job.json()["run"]))
    assert spec["data"] == str(server.settings.uploaded_data / "alice" / "mails")
    assert "needs the data set" in problem(alice.delete("/data/sets/mails"), 409)
    alice.post(f"/jobs/{job.json()['id']}/cancel")
    assert "no data set named" in problem(bob.post("/jobs", json=asked), 422)
    assert "already" in problem(alice.post("/data", json={**MAILS, "bytes": 9}), 409)
    problem(bob.delete("/data/sets/mails"), 404)
    assert alice.delete("/data/sets/mails").status_code == 204
    assert alice.get("/data").json() == {"data": [], "uploads": []}
    space.unlink()


def mail_space(server: Server) -> Path:
    """The file of a space of the server's, whose networks read the mails."""
    listops = load_space("listops")
    model = replace(listops.model, num_classes=2, input=TokenInput(10_000))
    file = server.settings.home / "spaces" / "letters.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(dump_space(replace(listops, name="letters", model=model)), "utf-8")
    return file


def test_data_are_searched_in_a_space_that_reads_them(server: Server, alice: httpx.Client) -> None:
    place = begun(alice, name="read")
    put(alice, place, LINES)
    alice.post(f"{place}/finish")
    assert ended(alice, place) is None
    asked = {"preset": "smoke", "dataset": "read"}
    for space, words in (("digits", "hold texts"), ("listops", "have 2 classes")):
        refused = alice.post("/jobs", json={**asked, "space": space})
        assert words in problem(refused, 422, "/dataset")
        assert words in problem(alice.post("/duration", json={**asked, "space": space}), 422)
    lacking = "No space of this server suits read: "
    with browser(server, server.token("alice")) as client:
        page = said(client.get("/new", params={"dataset": "read"}))
        assert lacking in page and "nas submit --space FILE --dataset read" in page
        assert lacking in said(client.get("/data/sets/read"))
        form = {"space": ["digits"], "dataset": ["read"]}
        form |= {f"gene:{one.name}": list(map(str, one.choices)) for one in genes(DIGITS, {})}
        checked = client.post("/new/check", data=form).json()
        assert "hold texts" in checked["problem"] and checked["field"] == "dataset"
        file = mail_space(server)
        page = said(client.get("/new", params={"dataset": "read"}))
        assert '<option value="letters" selected' in page and lacking not in page
        assert lacking not in said(client.get("/data/sets/read"))
        other = said(client.get("/new", params={"dataset": "listops"}))
        assert '<option value="listops" selected' in other
    made = alice.post("/jobs", json={**asked, "space": "letters"})
    assert made.status_code == 201, made.text
    alice.post(f"/jobs/{made.json()['id']}/cancel")
    alice.delete("/data/sets/read")
    file.unlink()


def test_what_is_wrong_with_a_file_or_was_left_out_is_told_with_its_line(
    server: Server, alice: httpx.Client
) -> None:
    bad = LINES + b'{"text": "no label"}\n'
    place = begun(alice, bad, name="bad")
    put(alice, place, bad)
    alice.post(f"{place}/finish")
    found = ended(alice, place)
    assert found is not None and found["state"] == "failed"
    assert "121" in found["note"] and str(server.settings.home) not in found["note"]
    problem(alice.post(f"{place}/finish"), 409)
    assert alice.delete(place).status_code == 204
    place = begun(alice, bad, name="bad", skip_bad=True)
    put(alice, place, bad)
    alice.post(f"{place}/finish")
    assert ended(alice, place) is None
    (line,) = alice.get("/data/sets/bad").json()["left_out"]
    assert "121" in line and str(server.settings.home) not in line
    alice.delete("/data/sets/bad")
    assert not list(server.settings.uploaded_data.glob("alice/.[ac]*"))


def test_of_a_file_that_is_not_utf8_one_sentence_tells_what_to_type(
    server: Server, alice: httpx.Client
) -> None:
    latin = b"text,label\n" + "Café,1\nTea,0\n".encode("latin-1") * 30
    place = begun(alice, latin, name="latin", file="latin.csv")
    put(alice, place, latin)
    alice.post(f"{place}/finish")
    found = ended(alice, place)
    assert found is not None and found["note"] == (
        "latin.csv: 30 lines are not UTF-8, the first is line 2 (byte 0xe9 at column 4); if it is "
        "Latin-1, convert it with iconv -f LATIN1 -t UTF-8 latin.csv > latin.utf8.csv; or leave "
        "them out with skip_bad"
    )
    alice.delete(place)


def test_a_file_comes_in_the_place_of_one_that_could_not_be_used(
    server: Server, alice: httpx.Client
) -> None:
    bad = b'{"text": "no label"}\n'
    place = begun(alice, bad, name="again")
    put(alice, place, bad)
    alice.post(f"{place}/finish")
    failed = ended(alice, place)
    assert failed is not None and failed["state"] == "failed"
    other = begun(alice, name="other")
    problem(alice.post("/data", json={**MAILS, "name": "again", "bytes": 0}), 422)
    assert ended(alice, place) == failed  # what is refused takes no place
    better = begun(alice, name="again")
    assert [one["id"] for one in alice.get("/data").json()["uploads"]] == sorted(
        one.rpartition("/")[2] for one in (other, better)
    )
    put(alice, better, LINES)
    alice.post(f"{better}/finish")
    assert ended(alice, better) is None
    alice.delete(other)
    alice.delete("/data/sets/again")
    assert not list(server.settings.uploaded_data.glob("alice/.[ac]*"))


REVIEWS = b"review,verdict,author\n" + b"".join(
    f"{word} {number},{word},{number % 9}\n".encode()
    for number in range(60)
    for word in ("yes", "no")
)
NAMED = {"columns": {"text": "review", "label": "verdict"}, "group_by": "author"}


def test_columns_are_named_also_after_a_check_that_missed_them(
    server: Server, alice: httpx.Client
) -> None:
    place = begun(alice, REVIEWS, name="reviews", file="reviews.csv")
    put(alice, place, REVIEWS)
    alice.post(f"{place}/finish")
    found = ended(alice, place)
    assert found is not None and found["note"].endswith(
        "which holds the label? Say so with columns.label"
    )
    with browser(server, server.token("alice")) as form:  # which has labels, and no options
        text = said(form.get("/data"))
        assert "Say so with “Column of labels”" in text and "Column of labels <input" in text
        assert "--column" not in text and "columns.label" not in text
    wrong = {"task": "classification", "columns": {"txt": "review"}}
    problem(alice.post(f"{place}/finish", json=wrong), 422)
    right = {"task": "classification", **NAMED}
    assert alice.post(f"{place}/finish", json=right).status_code == 202
    assert ended(alice, place) is None
    found = alice.get("/data/sets/reviews").json()
    assert found["splits"]["train"]["classes"].keys() == {"yes", "no"}
    assert sum(one["examples"] for one in found["splits"].values()) == 120
    settings = read_manifest(server.settings.uploaded_data / "alice" / "reviews").settings
    assert (settings["column_text"], settings["group_by"]) == ("review", "author")
    problem(server.client("bob").get("/data/sets/reviews"), 404)
    alice.delete("/data/sets/reviews")


def test_what_was_not_read_is_told(server: Server, alice: httpx.Client) -> None:
    lines = REVIEWS.splitlines()
    wide = b"\n".join(
        line + b",7" if number else line + b",id" for number, line in enumerate(lines)
    )
    place = begun(alice, wide, name="wide", file="wide.csv", **NAMED)
    put(alice, place, wide)
    alice.post(f"{place}/finish")
    assert ended(alice, place) is None
    found = alice.get("/data/sets/wide").json()
    assert (found["ignored"], found["num_ignored"]) == (["wide.csv: the columns id"], 1)
    facts = server.settings.uploaded_data / "alice" / "wide" / "upload.json"
    more = {"ignored": [f"file {n}" for n in range(200)], "num_ignored": 1234}
    with browser(server, server.token("alice")) as page:
        text = said(page.get("/data/sets/wide"))
        assert "Not read: 1<" in text and "<li>wide.csv: the columns id</li>" in text
        facts.write_text(json.dumps(json.loads(facts.read_text()) | more))
        text = said(page.get("/data/sets/wide"))
        assert "Not read: 1,234<" in text and "<li>file 9</li>" in text and "file 10" not in text
        assert "and 1,224 more" in text
    old = {k: v for k, v in json.loads(facts.read_text()).items() if not k.endswith("ignored")}
    facts.write_text(json.dumps(old))  # as it was written before
    assert alice.get("/data/sets/wide").json()["num_ignored"] == 0
    alice.delete("/data/sets/wide")


def test_what_was_taken_for_source_and_target_is_told(server: Server, alice: httpx.Client) -> None:
    lines = b"en,de\n" + b"".join(f"the fox {n},der fuchs {n}\n".encode() for n in range(60))
    place = begun(alice, lines, name="foxes", file="foxes.csv", task="translation")
    put(alice, place, lines)
    alice.post(f"{place}/finish")
    assert ended(alice, place) is None
    assert alice.get("/data/sets/foxes").json()["guessed"] == "en as source, de as target"
    with browser(server, server.token("alice")) as page:
        assert "Read: en as source, de as target" in said(page.get("/data/sets/foxes"))
    alice.delete("/data/sets/foxes")


def test_a_process_that_takes_too_much_is_lost_and_told_of(
    alice: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_uploads, "WALL_S", 0.0)
    place = begun(alice, name="slow")
    put(alice, place, LINES)
    alice.post(f"{place}/finish")
    found = ended(alice, place)
    assert found is not None and found["note"] == data_uploads.TOO_MUCH
    alice.delete(place)


# -- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ({"file": "../x.csv"}, 422),
        ({"file": ".x.csv"}, 422),
        ({"file": "x.pt"}, 422),
        ({"file": "x.csv\0"}, 422),
        ({"file": "漢" * 90 + ".csv"}, 422),  # 274 bytes
        ({"name": "a/b"}, 422),
        ({"name": "digits"}, 409),
        ({"task": "embeddings"}, 422),
        ({"task": "embedding", "tokenizer": "../x"}, 422),
        ({"bytes": 0}, 422),
        ({"bytes": 3 * 2**30}, 413),
        ({"image_size": 5000}, 422),
    ],
)
def test_other_announcements_are_refused(
    alice: httpx.Client, values: dict[str, Any], status: int
) -> None:
    problem(alice.post("/data", json={**MAILS, "bytes": 10, **values}), status)


def test_a_name_of_as_many_bytes_as_there_may_be_is_taken(tmp_path: Path) -> None:
    uploads = DataUploads(Settings(home=tmp_path))
    for letters, fits in ((65, True), (66, False)):
        name = "漢" * letters + ".csv"
        with nullcontext() if fits else pytest.raises(UploadError, match="more than 200 bytes"):
            uploads.announce("alice", "x", name, 2, {"task": "classification"})
    assert [one.received for one in uploads.on_their_way("alice")] == [0]


def test_more_than_announced_others_and_readers_are_refused(
    server: Server, alice: httpx.Client
) -> None:
    place = begun(alice, b"1234567890", name="small")
    problem(put(alice, place, b"x" * 11), 413)
    assert alice.get(place).json()["received"] == 0
    for other in (server.client("bob"), server.client("alice", Role.reader)):
        assert put(other, place, b"x").status_code in (403, 404)
    assert put(server.client_of(None), place, b"x").status_code == 401
    alice.delete(place)


def test_what_had_come_stays_when_a_part_is_refused(alice: httpx.Client) -> None:
    place = begun(alice, b"1234567890", name="stays")
    put(alice, place, b"12345678")
    problem(put(alice, place, b"x" * 9, 2), 413)
    assert alice.get(place).json()["received"] == 8
    told = alice.put(f"{place}/content", params={"offset": 2}, content=iter([b"x" * 9]))
    problem(told, 413)  # which did not tell its length before
    assert alice.get(place).json()["received"] == 8
    assert put(alice, place, b"", 2).json()["received"] == 8
    assert put(alice, place, b"34", 2).json()["received"] == 4  # what is behind may be another's
    alice.delete(place)


def test_what_came_of_a_part_that_broke_off_is_kept() -> None:
    written: list[bytes] = []

    async def stream() -> AsyncIterator[bytes]:
        for piece in (b"x" * PIECE, b"12", b"34"):
            yield piece
        raise ClientDisconnect

    context: Any = SimpleNamespace(thread_pools=ThreadPools())
    request: Any = SimpleNamespace(stream=stream)
    with pytest.raises(ProblemError, match="connection ended"):
        anyio.run(write_pieces, request, written.append, context)
    assert written == [b"x" * PIECE, b"1234"]


def test_a_deleted_data_set_is_told_of_by_what_to_do(
    server: Server, alice: httpx.Client, tmp_path: Path
) -> None:
    place = server.settings.uploaded_data / "alice" / "lost"
    spec = spec_of(tmp_path / "space", data=str(place), dataset="lost")
    job, _ = server.store.jobs.submit(submission(spec=spec.model_dump_json()))
    server.work()
    found = alice.get(f"/jobs/{job.id}").json()
    assert found["state"] == "failed" and found["error"] == (
        "the data set lost was deleted: upload the same file under that name again, with the "
        "options that it had"
    )


def test_two_who_send_at_once_do_not_mix(tmp_path: Path) -> None:
    uploads = DataUploads(Settings(home=tmp_path))
    made = uploads.announce("alice", "x", "x.csv", 10, {"task": "classification"})
    first = uploads.part("alice", made.id, 0)
    with pytest.raises(UploadError, match="just coming"):
        uploads.part("alice", made.id, 0)
    first.write(b"12345")
    first.close()
    assert uploads.on_their_way("alice")[0].received == 5


def test_a_check_that_a_killed_service_began_is_begun_again(tmp_path: Path) -> None:
    uploads = DataUploads(Settings(home=tmp_path))
    made = uploads.announce("alice", "x", "x.csv", 2, {"task": "classification"})
    part = uploads.part("alice", made.id, 0)
    part.write(b"ab")
    part.close()
    uploads._coming(made).rename(uploads._aside(made))  # and then it was killed
    assert uploads.on_their_way("alice")[0].state == "lost"
    uploads.start("alice", made.id)
    checked()
    assert uploads.on_their_way("alice")[0].state == "failed"


def test_one_that_becomes_a_data_set_while_it_is_asked_for_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = DataUploads(Settings(home=tmp_path))
    made = uploads.announce("alice", "x", "x.csv", 2, {"task": "classification"})
    part = uploads.part("alice", made.id, 0)
    part.write(b"ab")
    part.close()
    uploads._coming(made).rename(uploads._aside(made))
    state = DataUploads._state

    def late(self: DataUploads, *asked: Any) -> tuple[str, str] | None:
        self._discard(self._aside(made))  # as the thread does that has prepared it
        return state(self, *asked)

    monkeypatch.setattr(DataUploads, "_state", late)
    assert uploads.on_their_way("alice") == []
    assert not uploads._aside(made).exists()


def aside(uploads: DataUploads, name: str) -> Upload:
    """An upload of two bytes that is just being checked."""
    made = uploads.announce("alice", name, "x.csv", 2, {"task": "classification"})
    part = uploads.part("alice", made.id, 0)
    part.write(b"ab")
    part.close()
    uploads._coming(made).rename(uploads._aside(made))
    return made


def test_what_is_made_of_a_file_counts_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = DataUploads(Settings(home=tmp_path, upload_gib_per_owner=1000 / GIB))
    made = aside(uploads, "x")
    staged = uploads._aside(made) / ".prepared.123.tmp" / "train"
    staged.mkdir(parents=True)
    (staged / "tokens.npy").write_bytes(bytes(900))
    uploads._look(made, "writing")
    (staged / "more.npy").write_bytes(bytes(101))
    with pytest.raises(UploadError, match="the data set has 1,001 bytes"):
        uploads._look(made, "writing")
    monkeypatch.setattr(data_uploads, "WALL_S", 0.0)  # its process is killed at once
    uploads.start("alice", made.id)
    checked()
    assert uploads.on_their_way("alice")[0].note == data_uploads.TOO_MUCH
    assert not [one for one in uploads._aside(made).iterdir() if one.is_dir()]


def test_what_is_made_of_a_file_needs_its_room_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = DataUploads(Settings(home=tmp_path))
    made = aside(uploads, "x")
    (uploads._aside(made) / "prepared").mkdir()
    (uploads._aside(made) / "prepared" / "tokens.npy").write_bytes(bytes(900))
    disk = SimpleNamespace(free=LEFT_FREE)  # beside what is there
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
    uploads._look(made, "writing")
    disk.free -= 1
    with pytest.raises(UploadError, match="no room"):
        uploads._look(made, "writing")


# -- who goes on with an upload, and who looks at it ----------------------------------------------


def aged(folder: Path) -> None:
    """Let nobody have gone on with an upload for more than a day."""
    for path in (*folder.iterdir(), folder):
        moment = path.stat().st_mtime - DATA_IDLE_S - 1
        os.utime(path, (moment, moment))


def sweep(uploads: DataUploads) -> list[str]:
    """The names of the uploads that are left when a worker has tidied up."""
    without_runs: Any = None
    _sweep(without_runs, Settings(home=uploads._root.parent))
    return [one.name for one in uploads.on_their_way("alice")]


def test_data_that_somebody_goes_on_with_are_kept(tmp_path: Path) -> None:
    uploads = DataUploads(Settings(home=tmp_path))
    task = {"task": "classification"}
    going, idle = (uploads.announce("alice", name, "x.csv", 2, task) for name in ("a", "b"))
    for made in (going, idle):
        facts = uploads._coming(made) / FACTS_FILE
        facts.write_text(json.dumps({**asdict(made), "began": made.began - 3 * DATA_IDLE_S}))
    aged(uploads._coming(idle))
    assert sweep(uploads) == ["a"]
    uploads.part("alice", going.id, 0).close()
    uploads.announce("alice", "c", "x.csv", 2, task)  # which tidies up as well
    assert {one.name for one in uploads.on_their_way("alice")} == {"a", "c"}


def test_data_that_are_checked_are_kept(tmp_path: Path) -> None:
    uploads = DataUploads(Settings(home=tmp_path))
    folder = uploads._aside(aside(uploads, "x"))
    with FileLock(folder / LOCK_FILE):
        aged(folder)
        assert sweep(uploads) == ["x"]
    assert sweep(uploads) == [] and not folder.exists()


def test_who_looks_at_an_upload_does_not_take_others_who_look_for_its_check(
    tmp_path: Path,
) -> None:
    uploads = DataUploads(Settings(home=tmp_path))
    lock = uploads._aside(aside(uploads, "x")) / LOCK_FILE
    with lock.open("a+b") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert [one.state for one in uploads.on_their_way("alice")] == ["lost"]
    with FileLock(lock):
        assert [one.state for one in uploads.on_their_way("alice")] == ["checking"]


def test_who_begins_a_check_waits_for_those_who_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = DataUploads(Settings(home=tmp_path))
    made = aside(uploads, "x")
    with (uploads._aside(made) / LOCK_FILE).open("a+b") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        with monkeypatch.context() as waiting:
            waiting.setattr(time, "sleep", lambda _: other.close())
            uploads.start("alice", made.id)
    checked()
    assert [one.state for one in uploads.on_their_way("alice")] == ["failed"]


def test_a_failed_upload_stays_until_another_one_has_its_place(tmp_path: Path) -> None:
    uploads = DataUploads(Settings(home=tmp_path, upload_gib_per_owner=1000 / GIB))
    made = aside(uploads, "x")
    data_uploads._tell(uploads._aside(made), "it is wrong")
    for name in "abce":  # without it, as many as there may be
        uploads.announce("alice", name, "x.csv", 2, {"task": "classification"})
    with pytest.raises(UploadError, match="are not finished"):
        uploads.announce("alice", "d", "x.csv", 2, {"task": "classification"})
    uploads.dismiss("alice", next(iter(uploads._open("alice"))).id)
    with pytest.raises(UploadError, match="ask an administrator"):
        uploads.announce("alice", "x", "x.csv", 995, {"task": "classification"})
    assert made.id in [one.id for one in uploads.on_their_way("alice")]
    better = uploads.announce("alice", "x", "x.csv", 994, {"task": "classification"})
    found = {one.id: one.name for one in uploads.on_their_way("alice")}
    assert made.id not in found and found[better.id] == "x"


def test_of_uploads_that_could_not_be_used_the_last_few_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = DataUploads(Settings(home=tmp_path))

    def wrong(_: DataUploads, folder: Path, upload: Upload) -> None:
        data_uploads._tell(folder, "it is wrong")

    monkeypatch.setattr(DataUploads, "_prepared", wrong)
    made = [aside(uploads, f"wrong-{number}") for number in range(MOST_FAILED)]
    for one in made[1:]:
        uploads.start("alice", one.id)
        checked()
    made.append(aside(uploads, "wrong-too"))
    assert uploads_by_id(uploads).keys() == {one.id for one in made}
    for one in (made[-1], made[0]):  # which began first and was the last to fail
        uploads.start("alice", one.id)
        checked()
    left = {one.id for one in (made[0], *made[2:])}
    assert len(left) == MOST_FAILED and uploads_by_id(uploads).keys() == left
    fresh = uploads.announce("alice", "good", "x.csv", 2, {"task": "classification"})
    assert uploads_by_id(uploads).keys() == left | {fresh.id}
    for name in "abc":
        uploads.announce("alice", name, "x.csv", 2, {"task": "classification"})
    with pytest.raises(UploadError, match="or wait 24 hours"):
        uploads.announce("alice", "d", "x.csv", 2, {"task": "classification"})


def uploads_by_id(uploads: DataUploads) -> dict[str, Upload]:
    return {one.id: one for one in uploads._unfinished("alice")}


def test_an_upload_that_is_gone_is_told_with_its_own_times(alice: httpx.Client) -> None:
    place = f"/data/{'0' * 20}"
    told = problem(put(alice, place, b"x"), 404)
    assert told.endswith("given up after 24 hours in which nothing came; begin anew")
    for answer in (alice.get(place), alice.post(f"{place}/finish"), alice.delete(place)):
        assert problem(answer, 404) == told
    other = alice.put(f"/uploads/{'0' * 20}/files/config.json", content=b"{}")
    assert "after 15 minutes in which nothing came, or 6 hours in all" in problem(other, 404)


def test_a_file_is_prepared_as_the_command_does(tmp_path: Path) -> None:
    (tmp_path / "mails.jsonl").write_bytes(LINES)
    order = {"task": "classification", "source": str(tmp_path / "mails.jsonl")}
    found = prepare_file({**order, "out": str(tmp_path / "out")})["found"]
    assert (tmp_path / "out" / "manifest.json").is_file() and found["task"] == "classification"
    wrong = prepare_file({**order, "task": "translation", "out": str(tmp_path / "other")})
    assert str(tmp_path) not in wrong["problem"]
