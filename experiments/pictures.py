"""Takes the README's pictures: a front of the report, and the dashboard, of a search of its own.

``python -m experiments.pictures`` starts a service, lets it search `digits`, and photographs its
pages with Chromium, driven by playwright (``make install-dev``). The images go to `docs/images/`.
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


def finished_job(service: Service, preset: str) -> dict[str, Any]:
    """A search that the service has done."""
    api = service.api()
    # What is counted in place of latency needs no quiet machine.
    request = REQUEST | {"preset": preset, "seed": 3, "objectives": ["quality", "flops"]}
    job: dict[str, Any] = api.surely("POST", "/jobs", request)
    deadline = time.monotonic() + PATIENCE_S
    while job["state"] in ("queued", "running") and time.monotonic() < deadline:
        time.sleep(1.0)
        job = api.surely("GET", f"/jobs/{job['id']}")
    if job["state"] != "succeeded":
        raise EvaluationError(f"the search has {job['state']}: {job['error']}")
    return job


def measure(options: Options) -> dict[str, Any]:
    """Search and photograph.

    Raises:
        UsageError: without Chromium.
        EvaluationError: when the search fails.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise UsageError("Chromium is missing: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        service = Service(Path(scratch) / "home")
        server = service.serve(workers=1)
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            service.wait_until_ready()
            job = finished_job(service, options.preset)
            url = f"http://127.0.0.1:{service.port}"
            context = browser.new_context(viewport=SIZE)  # type: ignore[arg-type]
            context.add_cookies([{"name": "nas_session", "value": service.token, "url": url}])
            page = context.new_page()
            page.goto(f"{url}/jobs/{job['id']}")
            page.wait_for_load_state("networkidle")
            page.screenshot(path=IMAGES / "dashboard.png")
            page.goto((service.home / "runs" / job["run"] / REPORT_FILE).as_uri())
            page.wait_for_load_state("networkidle")
            page.locator(".js-plotly-plot").first.screenshot(path=IMAGES / "front.png")
        finally:
            browser.close()
            end(server)
    return {"images": sorted(file.name for file in IMAGES.glob("*.png"))}


def add_options(parser: argparse.ArgumentParser) -> None:
    """How long the search is."""
    parser.add_argument("--preset", default="quick", help="default: %(default)s")


STUDY = Study(
    "pictures",
    "What do a front and the dashboard look like?",
    add_options,
    measure,
    lambda found: [f"{', '.join(found['images'])} in docs/images/"],
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
