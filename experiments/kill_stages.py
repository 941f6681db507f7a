"""Kill a search with ``kill -9`` in every stage, resume it each time, and compare the results.

``python -m experiments.kill_stages --seed 3`` runs a search undisturbed, then the same search
killed once in each stage, and ends with exit code 1 unless both leave the same bytes in
``pareto.json``, the same retrained result, and no evaluation was done twice.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.harness import Options, Study, note
from nas.run.layout import EVENTS_FILE, FRONT_FILE, result_file
from search_spaces.files import read_lines

# Stage → events of it to wait for before the kill, so that long stages die halfway.
KILLS = {
    "declare": 1,
    "supernet": 30,
    "observe": 80,
    "rank": 1,
    "prune": 1,
    "evolve": 12,
    "verify": 6,
    "front": 1,
    "retrain": 40,
    "report": 1,
}
NAS = (sys.executable, "-m", "nas.console.app")


def events_of(run: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's events, those written so far."""
    return [json.loads(line) for line in read_lines(run / EVENTS_FILE)]


def run_until(command: Sequence[str], run: Path, stage: str, events: int) -> bool:
    """Run a command; kill it once a stage has left that many events. True if it was killed."""
    before = len(events_of(run))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        new = events_of(run)[before:]
        starts = [
            number
            for number, event in enumerate(new)
            if event["event"] == "StageStarted" and event["stage"].startswith(stage)
        ]
        if starts and len(new) - starts[0] >= events:
            process.kill()
            process.wait()
            return True
    return False


def killed_search(request: Sequence[str], run: Path) -> None:
    """Run the search, killed once in each stage, and finish it."""
    command = [*NAS, "search", *request, "--out", str(run), "--quiet"]
    for stage, events in KILLS.items():
        killed = run_until(command, run, stage, events)
        note(f"{stage:<10} {'killed' if killed else 'ended before the kill'}")
        command = [*NAS, "resume", str(run), "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def result_of(run: Path) -> tuple[bytes, list[str]]:
    """The front's bytes and the retrained networks' results."""
    results = sorted(run.glob(result_file("*")))
    return (run / FRONT_FILE).read_bytes(), [file.read_text("utf-8") for file in results]


def measure(options: Options) -> dict[str, Any]:
    """Run both searches and compare."""
    request = ["--space", options.space, "--seed", options.seed]
    request += ["--preset", options.preset, "--objectives", "quality,flops"]
    with tempfile.TemporaryDirectory() as folder:
        calm, killed = Path(folder) / "calm", Path(folder) / "killed"
        search = [*NAS, "search", *request, "--out", str(calm), "--quiet"]
        subprocess.run(search, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        killed_search(request, killed)
        measured = [
            (event["stage"], event["architecture_id"])
            for event in events_of(killed)
            if event["event"] == "ArchitectureMeasured"
        ]
        equal = result_of(calm) == result_of(killed)
    repeated = len(measured) - len(set(measured))
    return {"equal": equal, "evaluations": len(measured), "repeated": repeated}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("--space", default="digits")
    parser.add_argument("--seed", default="3")
    parser.add_argument("--preset", default="quick")


STUDY = Study(
    "kill_stages",
    "Does a search that is killed in every stage end in the same result?",
    add_options,
    measure,
    lambda found: [
        f"same results: {found['equal']}; {found['evaluations']} evaluations, "
        f"{found['repeated']} of them done twice"
    ],
    lambda found: found["equal"] and not found["repeated"],
    example="--seed 3",
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
