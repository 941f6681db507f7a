"""The dashboard in a real browser, from the form to the retrained network."""

from __future__ import annotations

import os
import queue
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from nas.results.partial_front import partial_front
from nas.results.reader import read_contents
from nas.run.events import ArchitectureMeasured, StageStarted
from nas.run.folder import RunFolder
from nas.search.front import read_front
from service.jobs.states import Job, Kind
from service.worker.runner import Child, Outcome
from service.worker.worker import Worker
from tests.nas.stages.test_prepared_search import IMAGE_SPACE, prepare_images
from tests.support import run_fixture
from tests.support.export_cases import hub_without_net
from tests.support.prepare_cases import pictures, png
from tests.support.service_cases import Server, do_job, submission
from tests.support.start_cases import write_llama
from tests.support.trained_cases import trained

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
Page, expect = playwright.Page, playwright.expect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]

ALL = -1  # a step that ends the job
LATE = ("pareto.json", "verification.jsonl", "retrained", "stages")
NARROW = {"width": 360, "height": 740}
AXE = files("axe_playwright_python") / "axe.min.js"
# What a page evaluates has no limit of its own, unlike all else that is asked of it.
AXE_RUN = """Promise.race([axe.run(), new Promise((_, refuse) =>
    setTimeout(() => refuse(new Error("axe has not ended after a minute")), 60_000))])"""


class Stepwise:
    """Does searches step by step, as the test asks for them.

    Attributes:
        steps: how many more networks to measure; `ALL` ends the job.
    """

    def __init__(self, scratch: Path) -> None:
        self.steps: queue.Queue[int] = queue.Queue()
        self._scratch = scratch

    def start(self, job: Job, folder: Path) -> Child:
        opened = RunFolder.open(folder)
        if job.kind is Kind.retrain:
            do_job(opened, job.kind, job.pick)
            self.steps.put(ALL)
            return _Steps(self.steps, opened, opened)
        whole = run_fixture.fill(
            RunFolder.create(self._scratch / f"{job.id}-{job.attempt}", opened.spec)
        )
        for source in whole.path.iterdir():
            if source.is_dir() and source.name not in LATE:
                _copy(source, folder / source.name)
            elif source.is_file() and source.name not in LATE:
                _at_once(source, folder / source.name)
        opened.log(StageStarted("verify", "Measure the best"))
        return _Steps(self.steps, whole, opened)


def _copy(folder: Path, there: Path) -> None:
    shutil.copytree(folder, there, dirs_exist_ok=True, copy_function=_at_once)


def _at_once(file: str | Path, there: str | Path) -> None:
    """As a search writes its files: pages that are open read either the old one or the new one."""
    os.replace(shutil.copy(file, f"{there}.new"), there)


class _Steps:
    def __init__(self, steps: queue.Queue[int], whole: RunFolder, folder: RunFolder) -> None:
        self._steps, self._whole, self._folder = steps, whole, folder
        name = "verification.jsonl"
        self._left = whole.read_journal(name) if whole is not folder else []

    def wait(self, timeout_s: float) -> Outcome | None:
        try:
            count = self._steps.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if count == ALL:
            if self._whole is not self._folder:
                _copy(self._whole.path, self._folder.path)
            return Outcome(ok=True)
        for line in self._left[:count]:
            self._folder.append("verification.jsonl", [line])
            self._folder.log(ArchitectureMeasured("verify", line["id"], line["measured"]))
        self._left = self._left[count:]
        return None

    def stop(self, grace_s: float) -> None:
        pass


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("home"), heartbeat_s=0.1, poll_s=0.1) as running:
        yield running


@pytest.fixture(scope="module")
def done(server: Server) -> str:
    return server.finished(server.client("alice"), title="earlier")


@pytest.fixture
def steps(server: Server, done: str, tmp_path: Path) -> Iterator[queue.Queue[int]]:
    """What the worker waits for, while it works."""
    runner, stopping = Stepwise(tmp_path), threading.Event()
    worker = Worker(server.store, server.settings, runner, "worker-2")

    def work() -> None:
        while not stopping.is_set():
            if not worker.work_once(stopping):
                stopping.wait(0.05)

    thread = threading.Thread(target=work)
    thread.start()
    yield runner.steps
    stopping.set()
    thread.join()


@pytest.fixture(scope="module")
def chromium() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: playwright.Browser, server: Server) -> Iterator[Page]:
    """A page that has logged in; whatever the browser complains about is an error."""
    with chromium.new_context() as context:
        opened, complaints = context.new_page(), []
        opened.set_default_timeout(60_000)
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        opened.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        opened.goto(f"{server.url}/?token={server.token('alice')}")
        yield opened
        assert complaints == []


@pytest.fixture(autouse=True, scope="module")
def patience() -> None:
    expect.set_options(timeout=60_000)


def submit(page: Page, title: str) -> str:
    """Submit a search with the form; the address of its page."""
    page.get_by_role("link", name="New search").click()
    page.get_by_label("Title").fill(title)
    page.get_by_label("Preset").select_option("smoke")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name=title)).to_be_visible()
    return str(page.url)


def click_point(page: Page, number: int) -> None:
    """Click a point of the front, which lies below what plotly listens with."""
    points = page.locator("#part-front .trace").filter(has=page.locator(".point")).last
    point = points.locator(".point").nth(number)
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


# -- a search from its form to its retrained network ----------------------------------------------


def test_a_form_counts_what_it_keeps(page: Page) -> None:
    page.get_by_role("link", name="New search").click()
    page.get_by_text("Choices of each gene").click()
    remaining = page.locator("#remaining")
    expect(remaining).to_contain_text("29,356,740")
    for size in ("8", "16", "32", "64"):
        page.locator(f'[name="gene:encoder.ffn_dim"][value="{size}"]').uncheck()
    expect(remaining).to_contain_text("51,660 networks")
    page.locator('[name="gene:encoder.ffn_dim"][value="4"]').uncheck()
    expect(page.locator("#problem")).to_contain_text("at least one")
    page.locator('[name="gene:encoder.ffn_dim"][value="4"]').check()
    others = page.locator(".gene:not([aria-label='FFN size']) label:not(:last-child) input")
    for box in others.all():
        box.uncheck()
    expect(remaining).to_have_text("1 network remains")
    expect(page.get_by_role("button", name="Count")).to_be_hidden()


def test_another_space_keeps_what_was_filled_in(page: Page) -> None:
    page.get_by_role("link", name="New search").click()
    page.get_by_label("Title").fill("kept")
    page.locator('[name="limit:params"]').fill("1234567")
    page.locator("#space").select_option("listops")
    expect(page.locator("[name='genes_of']")).to_have_value("listops")
    expect(page.get_by_label("Title")).to_have_value("kept")
    expect(page.locator('[name="limit:params"]')).to_have_value("1234567")
    expect(page.get_by_role("button", name="Show its choices")).to_be_hidden()


def test_a_front_grows_and_is_final_in_the_end(
    page: Page, server: Server, steps: queue.Queue[int]
) -> None:
    submit(page, "growing")
    expect(page.locator("#part-front")).to_contain_text("the search goes on")
    points = page.locator("#part-front .point")
    expect(points.first).to_be_attached()
    for number in (3, 4):
        before = points.count()
        steps.put(number)
        expect(points).not_to_have_count(before)
        folder = RunFolder.open(server.settings.runs / page.url.split("/")[-1])
        known = partial_front(read_contents(folder))
        networks = page.locator("#part-table a[data-network]")
        expect(networks).to_have_text([entry.id for entry in known.entries])
    expect(page.locator("#part-events")).to_contain_text("ArchitectureMeasured")
    steps.put(ALL)
    expect(page.locator("#part-head .state")).to_have_text("succeeded")
    expect(page.locator("#part-front")).not_to_contain_text("so far")


def test_what_the_reader_did_outlives_news(page: Page, steps: queue.Queue[int]) -> None:
    submit(page, "kept")
    steps.put(2)
    box = page.locator("#part-table input[type=checkbox]").first
    box.check()
    identity = box.get_attribute("id")
    page.locator("#artifacts summary").click()
    steps.put(5)
    expect(page.locator("#part-events")).to_contain_text("ArchitectureMeasured")
    expect(page.locator(".tile", has_text="networks measured")).to_contain_text("47")
    expect(page.locator("#artifacts")).to_have_attribute("open", "")
    kept = page.locator(f"#{identity}")
    assert kept.count() == 0 or kept.is_checked()
    steps.put(ALL)
    expect(page.locator("#part-head .state")).to_have_text("succeeded")


def test_points_show_their_networks_side_by_side(page: Page, server: Server, done: str) -> None:
    page.goto(f"{server.url}/jobs/{done}")
    expect(page.locator("#part-front .point").first).to_be_visible()
    cards = page.locator("#chosen .network")
    click_point(page, 0)
    expect(cards).to_have_count(1)
    expect(cards.locator("svg")).to_be_visible()
    front = read_front(RunFolder.open(server.settings.runs / done)).entries
    other = next(one.id for one in front if one.id not in cards.first.inner_text())
    page.locator(f'a[data-network="{other}"]').press("Enter")
    expect(cards).to_have_count(2)
    expect(cards.last).to_contain_text(other)
    page.get_by_role("button", name="Close").click()
    expect(cards).to_have_count(0)


def test_of_two_clicks_the_last_one_counts(page: Page, server: Server, done: str) -> None:
    held: list[playwright.Route] = []
    page.route(re.compile(r"networks\?id=[^&]*$"), lambda route: held.append(route))
    page.goto(f"{server.url}/jobs/{done}")
    links, cards = page.locator("#part-table a[data-network]"), page.locator("#chosen .network")
    links.nth(0).press("Enter")
    links.nth(1).press("Enter")
    expect(cards).to_have_count(2)
    with page.expect_response(re.compile(r"networks\?id=[^&]*$")) as answer:
        held[0].continue_()
    answer.value.finished()
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(cards).to_have_count(2)


def test_a_network_that_could_not_be_shown_can_be_clicked_again(
    chromium: playwright.Browser, server: Server, done: str
) -> None:
    refused = {"status": 503, "content_type": "text/html", "body": "<p role=alert>Busy.</p>"}
    with chromium.new_context() as context:
        page = context.new_page()
        page.goto(f"{server.url}/?token={server.token('alice')}")
        page.goto(f"{server.url}/jobs/{done}")
        cards, fault = page.locator("#chosen .network"), page.locator("#chosen .fault")
        links = page.locator("#part-table a[data-network]")
        links.nth(0).press("Enter")
        expect(cards).to_have_count(1)
        page.route("**/networks?*", lambda route: route.fulfill(**refused), times=1)
        links.nth(1).press("Enter")
        expect(fault).to_have_text("Busy.")
        expect(cards).to_have_count(1)
        assert page.url.count("network=") == 1
        page.route("**/networks?*", lambda route: route.abort(), times=1)
        links.nth(1).press("Enter")
        expect(fault).to_have_text("Failed to fetch")
        links.nth(1).press("Enter")
        expect(cards).to_have_count(2)
        expect(fault).to_have_count(0)


def test_fronts_are_compared_and_the_address_is_sent(
    page: Page, chromium: playwright.Browser, server: Server, done: str
) -> None:
    other = server.finished(server.client("alice"), seed=5, title="later")
    page.goto(server.url)
    for job in (done, other):
        page.locator(f"#tick-{job}").check()
    page.get_by_role("button", name="Compare the fronts").click()
    names = page.locator("#chart-compare-latency_ms .legendtext")
    expect(names.filter(has_text=re.compile("earlier|later"))).to_have_count(2)
    expect(page.locator("#chart-coordinates .legendtext")).to_have_count(2)
    page.get_by_role("textbox", name="Conditions").fill("latency_ms<=1.12")
    page.get_by_role("button", name="Show").click()
    rows = page.locator("#networks tbody tr")
    expect(page).to_have_url(re.compile("where="))
    few = rows.count()
    page.go_back()
    expect(rows).not_to_have_count(few)
    page.go_forward()
    expect(rows).to_have_count(few)
    page.reload()
    expect(rows).to_have_count(few)
    with page.expect_download() as picture:
        page.get_by_role("button", name="PNG of compare-latency_ms").click()
    assert picture.value.path().read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as file:
        page.get_by_role("link", name="CSV").click()
    assert len(file.value.path().read_text().splitlines()) == few + 1
    with chromium.new_context() as context:  # whoever gets the address logs in and is there
        opened = context.new_page()
        opened.goto(page.url)
        opened.get_by_label("Token").fill(server.token("alice"))
        opened.get_by_role("button", name="Log in").click()
        expect(opened).to_have_url(page.url.partition("#")[0])  # which no server is told
        expect(opened.locator("#networks tbody tr")).to_have_count(few)


def test_what_is_shown_of_a_job_is_in_its_address(page: Page, server: Server, done: str) -> None:
    page.goto(f"{server.url}/jobs/{done}")
    page.locator("a[data-network]").nth(1).click()
    cards = page.locator("#chosen .network")
    expect(cards).to_have_count(1)
    page.reload()
    expect(cards).to_have_count(1)
    page.get_by_role("link", name="More of").click()
    expect(page.locator("#parts")).to_contain_text("encoder.0.ffn")
    page.go_back()
    expect(cards).to_have_count(1)
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Retrain the ticked").click()
    expect(page.locator("#none-ticked")).to_be_visible()


def test_a_network_is_asked_with_a_picture(page: Page, server: Server, tmp_path: Path) -> None:
    address = asked_about_pictures(server, tmp_path)
    (tmp_path / "given.png").write_bytes(png(pictures(1)[0][0]))
    page.goto(server.url + address)
    page.locator("input[type=file]").set_input_files(tmp_path / "given.png")
    page.get_by_role("button", name="Ask").click()
    chances = page.locator(".answer meter")
    expect(chances.first).to_be_attached()
    values = chances.evaluate_all("all => all.map((one) => one.value)")
    assert values == sorted(values, reverse=True) and sum(values) == pytest.approx(1.0)
    cut = {"answer": "on", "chances": {}, "warning": None, "cut_at": 6, "note": "It was cut."}
    page.route("**/predict", lambda route: route.fulfill(json=cut))
    page.get_by_role("button", name="Ask").click()
    expect(page.locator(".answer .warning")).to_have_text("It was cut.")


def asked_about_pictures(server: Server, tmp_path: Path) -> str:
    """Where a network has its page that was trained on pictures."""
    data = prepare_images(tmp_path)
    job, _ = server.store.jobs.submit(submission())
    run = trained(server.settings.runs / job.run, IMAGE_SPACE, dataset="pets", data=str(data))
    (entry,) = (one for one in read_front(run).entries if run.has(f"retrained/{one.id}/weights.pt"))
    run_fixture.retrain(run, replace(entry, measured={**entry.measured, "params": 1.0}))
    server.client("alice").post(f"/jobs/{job.id}/cancel")
    return f"/jobs/{job.id}/networks/{entry.id}"


def test_a_search_is_cancelled_and_retried(page: Page, steps: queue.Queue[int]) -> None:
    submit(page, "stopped")
    state = page.locator("#part-head .state").first
    expect(state).to_have_text("running")
    page.get_by_role("button", name="Cancel").click()
    expect(state).to_have_text("cancelled")
    page.get_by_role("button", name="Retry").click()
    expect(state).to_have_text("running")
    steps.put(ALL)
    expect(state).to_have_text("succeeded")


def test_a_page_outlives_errors_that_pass(
    chromium: playwright.Browser, server: Server, done: str
) -> None:
    api = server.client("erin")
    job = api.post("/jobs", json={"space": "digits", "preset": "smoke", "title": "kept"}).json()
    passing = {"content_type": "text/html", "body": "<h1>Bad gateway</h1>"}
    with chromium.new_context() as context:
        page = context.new_page()
        page.goto(f"{server.url}/?token={server.token('erin')}")
        page.clock.install()
        address = f"{server.url}/jobs/{job['id']}"
        page.route("**/events?*", lambda route: route.fulfill(status=503, **passing))
        page.goto(address)
        page.route(address, lambda route: route.fulfill(status=502, **passing))
        for _ in range(2):
            with page.expect_response(lambda answer: answer.status == 502):
                page.clock.fast_forward(30_000)
        expect(page.get_by_role("heading", name="kept")).to_be_visible()
        page.unroute_all()
        with page.expect_response("**/events?*"):
            page.clock.fast_forward(30_000)
        api.post(f"/jobs/{job['id']}/cancel")
        expect(page.locator("#part-head .state")).to_have_text("cancelled")


def test_a_chosen_network_is_retrained(
    page: Page, server: Server, done: str, steps: queue.Queue[int]
) -> None:
    page.goto(f"{server.url}/jobs/{done}")
    page.locator("#part-table input[type=checkbox]").first.check()
    page.get_by_role("button", name="Retrain the ticked").click()
    expect(page.locator("#part-head .state").first).to_have_text("succeeded")
    expect(page.locator("#part-network")).to_contain_text("trained from scratch")
    page.get_by_role("link", name="The search").click()
    expect(page.locator("#part-head")).to_contain_text("On the same run")


# -- whoever looks, and with whatever -------------------------------------------------------------


def test_a_folder_is_uploaded_as_a_checkpoint(
    page: Page, server: Server, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    hubs = hub_without_net(tmp_path_factory)
    folder = write_llama(next(hubs), tmp_path / "my-llama")
    hubs.close()
    (folder / "pytorch_model.bin").write_text("x")
    page.get_by_role("link", name="Checkpoints").click()
    page.get_by_label("Folder").set_input_files(folder)
    expect(page.get_by_label("Name")).to_have_value("my-llama")
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("cell", name="my-llama", exact=True)).to_be_visible()
    kept = server.settings.uploads / "alice" / "my-llama"
    assert {path.name for path in kept.iterdir()} == (
        {path.name for path in folder.iterdir()} - {"pytorch_model.bin"} | {"upload.json"}
    )
    texts = tmp_path / "lines.txt"
    texts.write_text("".join(f"the cat sat on mat {number}\n" for number in range(300)))
    page.get_by_role("link", name="Data").click()
    form = page.locator("form.data-upload")
    expect(form.get_by_label("Checkpoint")).to_be_hidden()
    form.get_by_label("File").set_input_files(texts)
    form.get_by_label("What it is for").select_option("language_modelling")
    form.get_by_label("Checkpoint").select_option("my-llama")
    form.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("row").filter(has_text="lines")).to_contain_text("language modelling")
    page.get_by_role("link", name="Checkpoints").click()
    page.get_by_role("link", name="Search", exact=True).click()
    expect(page.get_by_label("Checkpoint")).to_have_value("my-llama")
    page.get_by_role("link", name="a checkpoint").click()
    page.get_by_text("Delete …").click()
    page.get_by_role("button", name="Delete my-llama").click()
    expect(page.get_by_text("There are none yet.")).to_be_visible()
    assert not kept.exists()


def test_a_checkpoint_that_was_refused_is_not_deleted_once_more(
    chromium: playwright.Browser, server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "wrong"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")
    with chromium.new_context() as context:  # to which the refusal is an error
        page, failed = context.new_page(), []
        page.on("response", lambda one: failed.append(one.status) if one.status >= 400 else None)
        page.goto(f"{server.url}/?token={server.token('alice')}")
        page.get_by_role("link", name="Checkpoints").click()
        page.get_by_label("Folder").set_input_files(folder)
        page.get_by_role("button", name="Upload").click()
        expect(page.locator("form.upload [role=status]")).to_contain_text("cannot be used")
        expect(page.get_by_role("button", name="Upload")).to_be_enabled()
        assert failed == [422]


def test_data_are_uploaded_and_offered(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "mails.jsonl"
    lines = [f'{{"text": "{word} {n}", "label": "{word}"}}\n' for n in range(60) for word in "ab"]
    file.write_text("".join(lines))
    page.get_by_role("link", name="Data").click()
    page.get_by_label("File").set_input_files(file)
    expect(page.get_by_label("Name")).to_have_value("mails")
    page.get_by_role("button", name="Upload").click()
    row = page.get_by_role("row").filter(has_text="mails").filter(has_text="yours")
    expect(row).to_contain_text("classification")
    page.get_by_role("link", name="New search").click()
    page.get_by_label("Data set").select_option("mails")
    file.write_text("".join([*lines, "{}\n"]))
    page.goto(page.url.replace("/new", "/data"))
    page.get_by_label("File").set_input_files(file)
    page.get_by_label("Name").fill("wrong")
    page.get_by_role("button", name="Upload").click()
    expect(page.locator(".problem")).to_contain_text("121")
    page.get_by_role("button", name="Dismiss").click()
    expect(page.locator(".problem")).to_have_count(0)


def test_what_is_wrong_with_a_file_is_one_sentence_and_the_form_stays_as_it_was(
    chromium: playwright.Browser, server: Server, tmp_path: Path
) -> None:
    most = server.settings.upload_data_bytes
    rows = "".join(f"Café {n},{n % 2},{n % 9}\n" for n in range(120))
    for name, content in (
        ("empty.csv", b""),
        ("large.csv", b""),
        ("latin.csv", f"body,label,author\n{rows}".encode("latin-1")),
        ("good.csv", f"body,label,author\n{rows}".encode()),
    ):
        (tmp_path / name).write_bytes(content)
    os.truncate(tmp_path / "large.csv", most + 1)
    typed = {"Name": "notes", "Column of texts": "body", "Column of groups": "author"}
    kept = server.settings.uploaded_data / "carol"
    with chromium.new_context() as context:
        page = context.new_page()
        page.goto(f"{server.url}/?token={server.token('carol')}")
        page.goto(f"{server.url}/data")
        form = page.locator("form.data-upload")
        status = form.get_by_role("status")

        def upload(name: str) -> None:
            form.get_by_label("File").set_input_files(tmp_path / name)
            form.get_by_role("button", name="Upload").click()

        def expect_typed() -> None:
            for label, value in typed.items():
                expect(form.get_by_label(label)).to_have_value(value)
            expect(form.get_by_role("button", name="Upload")).to_be_enabled()

        for label, value in typed.items():
            form.get_by_label(label).fill(value)
        upload("empty.csv")
        expect(status).to_have_text("empty.csv is empty: choose a file with examples")
        expect_typed()
        upload("large.csv")
        expect(status).to_have_text(
            f"large.csv is too large: it has {most + 1:,} bytes, and {most:,} are the most"
        )
        expect_typed()
        assert not list(kept.rglob("*.csv")) and not list(kept.glob(".coming-*"))
        upload("latin.csv")
        expect(page.locator(".problem")).to_have_text(
            "latin.csv: 120 lines are not UTF-8, the first is line 2 (byte 0xe9 at column 4); if "
            "it is Latin-1, convert it with iconv -f LATIN1 -t UTF-8 latin.csv > latin.utf8.csv; "
            "or leave them out with “leave out examples that cannot be used”"
        )
        expect(status).to_have_text("notes cannot be used: what is wrong stands below.")
        expect_typed()
        upload("good.csv")
        row = page.get_by_role("row").filter(has_text="notes").filter(has_text="yours")
        expect(row).to_contain_text("classification")
        expect(page.locator(".problem")).to_have_count(0)
        expect(form.get_by_label("Name")).to_have_value("")
        assert [one.name for one in kept.iterdir() if one.is_dir()] == ["notes"]
        status.get_by_role("link", name="Search with notes").click()
        expect(page.get_by_label("Data set")).to_have_value("notes")


def test_an_upload_goes_on_only_as_what_it_was_begun_as(
    page: Page, server: Server, tmp_path: Path
) -> None:
    api = server.client("alice")
    file = tmp_path / "letters.csv"
    file.write_text("text,label\n" + "".join(f"{n} {w},{w}\n" for n in range(60) for w in "ab"))
    announced = {"file": file.name, "bytes": file.stat().st_size, "task": "classification"}
    others = [
        api.post("/data", json={**announced, "name": name}).json()["id"]
        for name in ("letters-2", "letters")
    ]
    page.goto(f"{server.url}/data")
    # That of the same name was begun with the file as it was before it was edited.
    page.evaluate(f"localStorage.setItem('changed {others[1]}', '1')")
    form = page.locator("form.data-upload")
    form.get_by_label("File").set_input_files(file)
    form.get_by_role("button", name="Upload").click()
    link = form.get_by_role("status").get_by_role("link", name="Search with letters")
    expect(link).to_have_attribute("href", "/new?dataset=letters")
    for one in others:
        assert api.get(f"/data/{one}").json()["received"] == 0
        api.delete(f"/data/{one}")
    page.evaluate("localStorage.clear()")
    begun = api.post("/data", json={**announced, "name": "letters-3"}).json()["id"]
    form.get_by_label("File").set_input_files(file)
    form.get_by_label("Name").fill("letters-3")
    form.get_by_role("button", name="Upload").click()
    expect(form.get_by_role("status")).to_have_text("Search with letters-3")
    assert api.get(f"/data/{begun}").status_code == 404  # it has become the data set
    for name in ("letters", "letters-3"):
        assert api.delete(f"/data/sets/{name}").status_code == 204


def test_an_upload_outlives_what_is_no_answer_of_the_service(
    chromium: playwright.Browser, server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "notes.csv"
    file.write_text("text,label\n" + "".join(f"{n} {w},{w}\n" for n in range(60) for w in "ab"))
    refused = {"status": 413, "content_type": "text/html", "body": "<h1>Too large</h1>"}
    with chromium.new_context() as context:
        page = context.new_page()
        page.goto(f"{server.url}/?token={server.token('dora')}")
        page.clock.install()
        page.goto(f"{server.url}/data")
        page.route("**/content?*", lambda route: route.fulfill(**refused), times=1)
        page.route(re.compile("/api/v1/data/[0-9a-f]+$"), lambda one: one.abort(), times=1)
        form = page.locator("form.data-upload")
        status = form.get_by_role("status")
        form.get_by_label("File").set_input_files(file)
        form.get_by_role("button", name="Upload").click()
        expect(status).to_contain_text("answered 413; trying again")
        page.clock.fast_forward(5_000)
        expect(status).to_contain_text("Failed to fetch; trying again")
        page.clock.fast_forward(5_000)
        expect(status).to_have_text("Search with notes")
    server.client("dora").delete("/data/sets/notes")


def test_columns_are_named_and_what_data_hold_is_shown(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "reviews.csv"
    lines = [f"{word} {n},{word},{n % 9}\n" for n in range(60) for word in "ab"]
    file.write_text("review,verdict,author\n" + "".join(lines))
    page.get_by_role("link", name="Data").click()
    form = page.locator("form.data-upload")
    form.get_by_label("File").set_input_files(file)
    form.get_by_label("What it is for").select_option("translation")
    expect(form.get_by_label("Column of labels")).to_be_hidden()
    expect(form.get_by_label("Column of sources")).to_be_visible()
    form.get_by_label("What it is for").select_option("classification")
    form.get_by_label("Column of texts").fill("review")
    form.get_by_label("Column of groups").fill("author")
    form.get_by_role("button", name="Upload").click()
    expect(page.locator(".problem")).to_contain_text("label")
    page.get_by_text("Prepare it otherwise …").click()
    again = page.locator("details form.prepare")
    expect(again.get_by_label("Column of texts")).to_have_value("review")
    again.get_by_label("Column of labels").fill("verdict")
    again.get_by_role("button", name="Check again").click()
    page.get_by_role("link", name="reviews").click()
    expect(page.get_by_role("heading", name="Classes")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="50.0%")).to_have_count(2)
    page.get_by_role("link", name="Search with it").click()
    expect(page.get_by_label("Data set")).to_have_value("reviews")


def test_what_the_form_of_data_does_not_show_is_not_sent(
    chromium: playwright.Browser, server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"source": "a", "target": "b"}\n')
    with chromium.new_context() as context:
        page = context.new_page()
        page.goto(f"{server.url}/?token={server.token('erin')}")
        page.goto(f"{server.url}/data")
        form = page.locator("form.data-upload")
        form.get_by_label("File").set_input_files(file)
        for task, side in (("translation", None), ("classification", 28)):
            form.get_by_label("What it is for").select_option("classification")
            form.get_by_label("Side of pictures").fill("28")
            form.get_by_label("What it is for").select_option(task)
            form.get_by_label("Name").fill(task)
            with page.expect_request(lambda one: one.method == "POST") as sent:
                form.get_by_role("button", name="Upload").click()
            assert sent.value.post_data_json.get("image_size") == side
            expect(form.get_by_role("button", name="Upload")).to_be_enabled()


def test_a_search_is_sent_again_with_changes(page: Page, server: Server, done: str) -> None:
    page.goto(f"{server.url}/jobs/{done}")
    page.get_by_role("link", name="Again with changes").click()
    expect(page.get_by_label("Title")).to_have_value("earlier")
    limit = page.locator('[name="limit:params"]')
    limit.fill("1")
    expect(page.locator("#problem")).to_contain_text("smallest it can reach")
    expect(limit).to_have_attribute("aria-invalid", "true")
    limit.fill("30000")
    expect(page.locator("#problem")).to_be_hidden()
    page.get_by_label("Title").fill("changed")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="changed")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()


def test_axe_finds_nothing_serious(
    chromium: playwright.Browser, server: Server, done: str, tmp_path: Path
) -> None:
    network = read_front(RunFolder.open(server.settings.runs / done)).entries[0].id
    paths = ["/", "/new", "/data", "/checkpoints", "/webhook", f"/compare?job={done}&job={done}"]
    paths += [
        f"/jobs/{done}",
        f"/jobs/{done}/networks/{network}",
        f"/jobs/{done}?network={network}",
    ]
    paths += [asked_about_pictures(server, tmp_path), "/jobs/nonsense"]
    found = []
    for scheme in ("light", "dark"):
        with chromium.new_context(color_scheme=scheme, bypass_csp=True) as context:
            page = context.new_page()
            for path in ("/jobs/without-a-login", f"/?token={server.token('alice')}", *paths):
                page.goto(server.url + path)
                page.wait_for_load_state("networkidle")
                page.evaluate(AXE.read_text(encoding="utf-8"))
                violations = page.evaluate(AXE_RUN)["violations"]
                found += [
                    (scheme, path, one["id"], one["nodes"][0]["html"])
                    for one in violations
                    if one["impact"] in ("serious", "critical")
                ]
    assert found == []


PAGES = (
    *("/", "/new?space=multi30k", "/data", "/checkpoints", "/jobs/ID"),
    *("/compare?job=ID", "/jobs/ID/networks/NETWORK"),
)


@pytest.mark.parametrize("path", PAGES)
def test_pages_fit_a_phone(page: Page, server: Server, done: str, path: str) -> None:
    page.set_viewport_size(NARROW)
    network = read_front(RunFolder.open(server.settings.runs / done)).entries[0].id
    page.goto(server.url + path.replace("ID", done).replace("NETWORK", network))
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


def test_a_long_word_takes_no_more_room_than_there_is(
    chromium: playwright.Browser, server: Server, page: Page
) -> None:
    words = {"title": "W" * 200, "notes": "N" * 3000, "tags": ["t" * 32, *"abcdefg"]}
    job = server.finished(server.client("alice"), **words)
    wide = "document.documentElement.scrollWidth - innerWidth"
    for size in ({"width": 1280, "height": 900}, NARROW):
        page.set_viewport_size(size)
        for path in ("/", f"/jobs/{job}", f"/compare?job={job}"):
            page.goto(server.url + path)
            page.wait_for_load_state("networkidle")
            assert page.evaluate(wide) <= 0, (path, size)
        page.goto(server.url)
        assert page.locator(".scroll").evaluate("one => one.scrollWidth - one.clientWidth") <= 0
    with chromium.new_context(viewport=NARROW) as context:  # to which a 404 is an error
        lost = context.new_page()
        lost.goto(f"{server.url}/?token={server.token('alice')}")
        lost.goto(f"{server.url}/{'x' * 100}")
        expect(lost.get_by_role("alert")).to_be_visible()
        assert lost.evaluate(wide) <= 0


@pytest.mark.parametrize(
    ("path", "cell"),
    [("/jobs/ID", "#exchange td[data-label]"), ("/", ".jobs td[data-label=progress]")],
)
def test_on_a_phone_no_line_of_a_cell_begins_below_its_label(
    page: Page, server: Server, done: str, path: str, cell: str
) -> None:
    page.set_viewport_size(NARROW)
    page.goto(server.url + path.replace("ID", done))
    lefts = page.locator(cell).first.evaluate("""cell => {
        const text = document.createElement("span");
        text.textContent = "some words ".repeat(40);
        cell.replaceChildren(text);
        const lines = document.createRange();
        lines.selectNodeContents(text.firstChild);
        return [...lines.getClientRects()].map((one) => Math.round(one.left));
    }""")
    label = page.locator(cell).first.evaluate("one => one.getBoundingClientRect().left")
    assert len(lefts) > 2 and len(set(lefts)) == 1 and lefts[0] > label + 60


def test_pages_are_dark_where_that_is_wished(page: Page, server: Server) -> None:
    colours = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(255, 255, 255)", "rgb(20, 23, 28)"]


def test_the_keyboard_is_enough(page: Page, server: Server, done: str) -> None:
    page.goto(f"{server.url}/?text=earlier")
    link = page.get_by_role("link", name="earlier", exact=True)
    for _ in range(100):
        page.keyboard.press("Tab")
        style = "getComputedStyle(document.activeElement)"
        assert page.evaluate(f"{style}.outlineStyle") == "solid", "the focus is not seen"
        if link.evaluate("one => one === document.activeElement"):
            break
    expect(link).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(done))


def test_pages_can_be_read_without_scripts(
    chromium: playwright.Browser, server: Server, done: str
) -> None:
    with chromium.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{server.url}/?token={server.token('alice')}")
        page.get_by_role("link", name="earlier", exact=True).click()
        expect(page.locator("noscript p")).to_be_visible()
        boxes = page.locator("#part-table input[type=checkbox]")
        boxes.nth(0).check()
        boxes.nth(1).check()
        page.get_by_role("button", name="side by side").click()
        expect(page.locator(".network svg")).to_have_count(2)
        page.get_by_role("link", name="New search").click()
        page.get_by_text("Choices of each gene").click()
        page.locator('[name="gene:encoder.attention"][value="omni"]').uncheck()
        page.get_by_role("button", name="Count").click()
        expect(page.locator("#remaining")).not_to_contain_text("29,356,740")
        page.get_by_role("button", name="Submit").click()
        expect(page.locator("#part-head .state")).to_have_text("queued")
