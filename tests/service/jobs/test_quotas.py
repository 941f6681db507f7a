"""What each owner may have: jobs that wait, bytes in the database, bytes on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from search_spaces.loading import dump_space, load_space
from service.auth import Role
from service.jobs.listing import Filter
from service.jobs.states import Action, Job, Kind, State
from service.jobs.store import Store
from service.jobs.submissions import NoRoomError, QueueFullError, Quotas
from tests.support import store_cases
from tests.support.service_cases import SMOKE, Server, claim, must, problem, submission
from tests.support.store_cases import in_state, submit

shared, store = store_cases.shared, store_cases.store


def add(store: Store, quotas: Quotas, owner: str = "alice", **values: object) -> Job:
    return store.jobs.submit(submission(owner, **values), quotas)[0]


def test_jobs_that_wait_are_counted_by_owner(store: Store) -> None:
    quotas = Quotas(queued=2)
    first, _ = add(store, quotas), add(store, quotas)
    with pytest.raises(QueueFullError, match="2 jobs of alice wait already"):
        add(store, quotas)
    add(store, quotas, "bob")
    must(claim(store))
    add(store, quotas)  # one is not waiting any more
    store.leases.end(must(store.jobs.get(first.id)), Action.fail)
    with pytest.raises(QueueFullError):
        store.jobs.retry(first.id, quotas)
    assert must(store.jobs.get(first.id)).state == "failed"


def test_bytes_in_the_database_are_those_of_requests_specs_and_events(store: Store) -> None:
    def fits(quota: int) -> bool:
        try:
            add(store, Quotas(database_bytes=quota), priority=0)
        except NoRoomError as error:
            assert "of the database" in str(error)
            return False
        return True

    submit(store, spec="x" * 10_000, request={"space": "y" * 5_000})
    assert not fits(15_000)
    assert fits(30_000)
    job = must(claim(store))
    assert job.request == {"space": "y" * 5_000}
    store.leases.append(job, [{"event": "Note", "message": "z" * 40_000}], 9, job.summary)
    assert not fits(30_000)
    add(store, Quotas(database_bytes=1), "bob")
    ended = store.leases.end(must(store.jobs.get(job.id)), Action.succeed)
    store.jobs.delete(ended.id)
    assert fits(30_000)


def test_bytes_on_disk_are_those_of_ones_own_runs(store: Store) -> None:
    job = submit(store)
    store.retention.note(job.run, 1000)
    assert (store.retention.total("alice"), store.retention.total("bob")) == (1000, 0)
    with pytest.raises(NoRoomError, match="runs of alice"):
        add(store, Quotas(owner_disk_bytes=1000))
    add(store, Quotas(owner_disk_bytes=1000), "bob")
    with pytest.raises(NoRoomError, match="the runs fill"):
        add(store, Quotas(disk_bytes=1000), "bob")
    add(store, Quotas(owner_disk_bytes=1001, disk_bytes=1001))


@pytest.mark.parametrize("state", [State.failed, State.cancelled, State.succeeded])
def test_what_a_worker_will_delete_refuses_nothing(store: Store, state: State) -> None:
    job = in_state(store, state)
    store.retention.note(job.run, 2000)
    quotas = Quotas(owner_disk_bytes=1000, disk_bytes=1000)
    follow_up = add(store, quotas, kind=Kind.export, spec=None, run=job.run)
    with pytest.raises(NoRoomError):  # a job needs it
        add(store, quotas)
    store.jobs.cancel(follow_up.id, 20.0)
    assert store.retention.shrink(job.run, "results" if state is State.succeeded else "nothing")
    with pytest.raises(NoRoomError):  # it is as small as it can be
        add(store, quotas)


def test_a_follow_up_is_its_owners_as_well(store: Store) -> None:
    search = submit(store)
    with pytest.raises(QueueFullError):
        add(store, Quotas(queued=1), kind=Kind.retrain, spec=None, run=search.run)


def test_a_key_is_known_whatever_the_quotas_are(store: Store) -> None:
    job = submit(store, key="k")
    store.retention.note(job.run, 1000)
    full = Quotas(queued=1, database_bytes=1, owner_disk_bytes=1, disk_bytes=1)
    assert store.jobs.submit(submission(key="k"), full) == (job, False)
    with pytest.raises(QueueFullError):
        store.jobs.submit(submission(key="another"), full)


# -- over HTTP ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limits = {"queued_per_owner": 2, "database_mib_per_owner": 0.1, "quota_gib_per_owner": 1.0}
    with Server(tmp_path_factory.mktemp("home"), **limits) as running:
        yield running


@pytest.mark.parametrize("role", [Role.submitter, Role.admin])
def test_a_full_queue_is_a_429_and_says_what_to_do(server: Server, role: Role) -> None:
    client = server.client(f"queue-{role}", role)
    key = {"Idempotency-Key": "one"}
    made = client.post("/jobs", json=SMOKE, headers=key).json()
    other = client.post("/jobs", json=SMOKE).json()
    refused = client.post("/jobs", json=SMOKE)
    assert "cancel some" in problem(refused, 429)
    assert int(refused.headers["retry-after"]) > 0
    again = client.post("/jobs", json=SMOKE, headers=key)
    assert (again.status_code, again.json()["id"]) == (200, made["id"])
    client.post(f"/jobs/{other['id']}/cancel")
    assert client.post("/jobs", json=SMOKE).status_code == 201
    assert "cancel some" in problem(client.post(f"/jobs/{other['id']}/retry"), 429)


def test_a_full_share_of_the_disk_or_the_database_is_a_507(server: Server) -> None:
    client = server.client("full")
    key = {"Idempotency-Key": "one"}
    job = client.post("/jobs", json=SMOKE, headers=key).json()
    server.store.retention.note(job["run"], 2**30)
    assert "fill their 1 GiB" in problem(client.post("/jobs", json=SMOKE), 507)
    assert client.post("/jobs", json=SMOKE, headers=key).status_code == 200
    assert server.client("another").post("/jobs", json=SMOKE).status_code == 201
    server.store.retention.note(job["run"], 0)
    submit(server.store, "full", spec="x" * 110_000)
    server.store.jobs.cancel(job["id"], 20.0)
    assert "fill their 0.1 MiB of the database" in problem(client.post("/jobs", json=SMOKE), 507)


# -- what is kept of a request --------------------------------------------------------------------


def test_comments_of_a_space_are_not_kept(server: Server) -> None:
    client = server.client("toml")
    toml = dump_space(load_space("digits"))
    request = {**SMOKE, "space_toml": f"# {'x' * 50_000}\n{toml}", "dataset": "digits"}
    del request["space"]
    made = client.post("/jobs", json=request)
    assert made.status_code == 201, made.text
    job = must(server.store.jobs.get(made.json()["id"]))
    assert job.request["space_toml"] == toml
    again = client.post("/jobs", json={**request, "space_toml": toml})
    assert again.json()["request"] == made.json()["request"]


@pytest.mark.parametrize(
    "value", ["x" * 101, 10**30 + 1, -(10**30)], ids=["long", "large", "small"]
)
def test_settings_are_short(server: Server, value: object) -> None:
    request = {**SMOKE, "settings": {"supernet.epochs": value}}
    answer = server.client("settings").post("/jobs", json=request)
    assert answer.status_code == 422
    assert server.store.jobs.list(Filter(owner="settings"), 1) == []


def test_a_space_is_short_without_its_comments_too(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.api.submitting.MAX_SPACE_BYTES", 100)
    request = {**SMOKE, "space_toml": dump_space(load_space("digits")), "dataset": "digits"}
    del request["space"]
    answer = server.client("toml-2").post("/jobs", json=request)
    assert "100 are the most" in problem(answer, 422, "/space_toml")


def test_the_home_that_was_there_keeps_its_mode_and_closes_what_is_private(tmp_path: Path) -> None:
    from service.settings import Settings, make_home

    tmp_path.chmod(0o755)
    (tmp_path / "runs").mkdir(mode=0o755)
    (tmp_path / "spaces").mkdir(mode=0o755)
    make_home(Settings(home=tmp_path))
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    names = "runs", "logs", "cache", "trash", "data", "uploads", "uploaded-data"
    private = dict.fromkeys(names, 0o700)
    assert modes == {**private, "spaces": 0o755}
