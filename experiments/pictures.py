"""Takes the README's pictures: a front of the report, and the dashboard, of a search of its own.

``python -m experiments.pictures`` starts a service, lets it search `digits`, and photographs its
pages with Chromium, driven by playwright (``make install-dev``). The images go to `docs/images/`.

``--pages DIR`` photographs every page of the dashboard instead, as wide as a desk's screen and a
phone's, light and dark, after two searches and a retraining; its mark is that no page is wider than
the screen and no table cut off.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from experiments.harness import Options, Study
from experiments.service_process import REQUEST, ROOT, Service, end
from nas.run.layout import REPORT_FILE
from search_spaces.errors import EvaluationError, UsageError

IMAGES = ROOT / "docs" / "images"
SIZE = {"width": 1200, "height": 760}
PATIENCE_S = 1800.0
ROWS = "".join(f"{word} {number},{word}\n" for number in range(60) for word in ("yes", "no"))
WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")
# Tables that scroll sideways because a part of them is not to be seen.
CUT = """[...document.querySelectorAll(".scroll")]
  .filter((one) => one.querySelector("table") && one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.closest("section")?.id ?? "")"""


def finished_job(service: Service, preset: str, seed: int = 3) -> dict[str, Any]:
    """A search that the service has done."""
    # What is counted in place of latency needs no quiet machine.
    request = REQUEST | {"preset": preset, "seed": seed, "objectives": ["quality", "flops"]}
    return _ended(service, service.api().surely("POST", "/jobs", request))


def _ended(service: Service, job: dict[str, Any]) -> dict[str, Any]:
    """A job when it has succeeded.

    Raises:
        EvaluationError: when it has not.
    """
    deadline = time.monotonic() + PATIENCE_S
    while job["state"] in ("queued", "running") and time.monotonic() < deadline:
        time.sleep(1.0)
        job = service.api().surely("GET", f"/jobs/{job['id']}")
    if job["state"] != "succeeded":
        raise EvaluationError(f"the job has {job['state']}: {job['error']}")
    return job


def measure(options: Options) -> dict[str, Any]:
    """Search and photograph.

    Raises:
        UsageError: without Chromium.
        EvaluationError: when a search fails.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise UsageError("Chromium is missing: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        service = Service(Path(scratch) / "home")
        server = service.serve(workers=1)
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            service.wait_until_ready()
            if options.pages is not None:
                options.pages.mkdir(parents=True, exist_ok=True)
                return {"pages": every_page(service, browser, options.preset, options.pages)}
            for_the_readme(service, browser, options.preset)
        finally:
            browser.close()
            end(server)
    return {"images": sorted(file.name for file in IMAGES.glob("*.png"))}


def for_the_readme(service: Service, browser: Any, preset: str) -> None:
    """The two images of the README."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    job = finished_job(service, preset)
    page = _logged_in(service, browser, viewport=SIZE)
    page.goto(f"{_address(service)}/jobs/{job['id']}")
    page.wait_for_load_state("networkidle")
    page.screenshot(path=IMAGES / "dashboard.png")
    page.goto((service.home / "runs" / job["run"] / REPORT_FILE).as_uri())
    page.wait_for_load_state("networkidle")
    page.locator(".js-plotly-plot").first.screenshot(path=IMAGES / "front.png")


def every_page(service: Service, browser: Any, preset: str, folder: Path) -> list[dict[str, Any]]:
    """Photograph all pages in all widths and colours.

    Returns:
        Of each picture its ``file``, the page's ``width`` and the sections with ``cut`` tables.
    """
    first, second = (finished_job(service, preset, seed)["id"] for seed in (3, 4))
    api = service.api()
    network = api.surely("GET", f"/jobs/{first}/front")["front"][0]["id"]
    for deed, more in (("retrain", {}), ("export", {"format": "torch"})):
        _ended(service, api.surely("POST", f"/jobs/{first}/{deed}", {"pick": network, **more}))
    paths = {
        "jobs": "/",
        "job": f"/jobs/{first}",
        "network": f"/jobs/{first}/networks/{network}",
        "networks": f"/jobs/{first}/networks?id={network}",
        "compare": f"/compare?job={first}&job={second}",
        "new": "/new",
        "again": f"/new?again={first}",
        "data": "/data",
        "data-set": uploaded(service, browser),
        "checkpoints": "/checkpoints",
        "webhook": "/webhook",
        "nonsense": "/jobs/nonsense",
    }
    found = []
    for width in WIDTHS:
        for scheme in SCHEMES:
            size = {"width": width, "height": 800}
            stranger = browser.new_context(viewport=size, color_scheme=scheme).new_page()
            page = _logged_in(service, browser, viewport=size, color_scheme=scheme)
            for name, path in {"login": "/", **paths}.items():
                shown = stranger if name == "login" else page
                shown.goto(_address(service) + path)
                shown.wait_for_load_state("networkidle")
                file = f"{name}-{width}-{scheme}.png"
                shown.screenshot(path=folder / file, full_page=True)
                whole = shown.evaluate("document.documentElement.scrollWidth") <= width
                found.append({"file": file, "whole": whole, "cut": shown.evaluate(CUT)})
    return found


def uploaded(service: Service, browser: Any) -> str:
    """The path of the page of a data set that was uploaded."""
    page = _logged_in(service, browser)
    page.goto(f"{_address(service)}/data")
    file = {"name": "words.csv", "mimeType": "text/csv", "buffer": f"text,label\n{ROWS}".encode()}
    page.locator("[name=file]").set_input_files(file)
    page.get_by_role("button", name="Upload").click()
    link = page.get_by_role("link", name="words", exact=True)
    link.wait_for(timeout=1000 * PATIENCE_S)
    return str(link.get_attribute("href"))


def _address(service: Service) -> str:
    return f"http://127.0.0.1:{service.port}"


def _logged_in(service: Service, browser: Any, **how: Any) -> Any:
    context = browser.new_context(**how)
    cookie = {"name": "nas_session", "value": service.token, "url": _address(service)}
    context.add_cookies([cookie])
    return context.new_page()


def add_options(parser: argparse.ArgumentParser) -> None:
    """How long the searches are, and which pictures are taken."""
    parser.add_argument("--preset", default="quick", help="default: %(default)s")
    parser.add_argument("--pages", type=Path, metavar="DIR", help="all pages, into that folder")


def show(found: dict[str, Any]) -> list[str]:
    """What was photographed, and what is not whole."""
    if "images" in found:
        return [f"{', '.join(found['images'])} in docs/images/"]
    lines = [f"{len(found['pages'])} pictures"]
    lines += [f"{one['file']}: wider than the screen" for one in found["pages"] if not one["whole"]]
    cut = [one for one in found["pages"] if one["cut"]]
    return lines + [f"{one['file']}: cut tables in {', '.join(one['cut'])}" for one in cut]


STUDY = Study(
    "pictures",
    "What do a front and the dashboard look like?",
    add_options,
    measure,
    show,
    met=lambda found: all(one["whole"] and not one["cut"] for one in found.get("pages", [])),
    example="--preset smoke --pages /tmp/pages",
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
