"""Kill a search with ``kill -9`` in every stage, resume it each time, and compare the results.

``python -m experiments.kill_stages --seed 3`` runs a search undisturbed, then the same search
killed once in each stage that it has, and ends with exit code 1 unless every kill came in time,
both leave the same bytes in ``pareto.json`` and the same retrained results, and no evaluation was
done twice.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness import Options, Study, note
from nas.run.folder import RunFolder
from nas.run.layout import EVENTS_FILE, FRONT_FILE, result_file
from nas.run.stages import REPORT, RETRAIN, search_stages
from search_spaces.errors import NasError
from search_spaces.files import read_lines

# Long stages die halfway: stage → events of it to wait for before the kill, 1 for all others.
EVENTS = {"supernet": 30, "observe": 80, "evolve": 12, "verify": 6, "exchange": 4, RETRAIN: 40}
NAS = (sys.executable, "-m", "nas.console.app")


def events_of(run: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's events, those written so far."""
    return [json.loads(line) for line in read_lines(run / EVENTS_FILE)]


def run_to_end(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Run a command of a search, of which nothing is printed.

    Raises:
        NasError: when it fails, with the last line that it wrote to stderr.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        *_, last = ["it said nothing", *done.stderr.strip().splitlines()]
        said = last.removeprefix("error: ")
        raise NasError(f"the search ended with exit code {done.returncode}: {said}")


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


def stages_of(run: Path) -> list[str]:
    """What the stages of a search begin with, in order."""
    stages = search_stages(RunFolder.open(run).spec)
    return [*(stage.name for stage in stages), RETRAIN, REPORT.name]


def killed_search(request: Sequence[str], run: Path, stages: Sequence[str]) -> dict[str, bool]:
    """Run the search, killed once in each stage, and finish it; whether each kill came in time."""
    command = [*NAS, "search", *request, "--out", str(run), "--quiet"]
    killed = {}
    for stage in stages:
        killed[stage] = run_until(command, run, stage, EVENTS.get(stage, 1))
        note(f"{stage:<10} {'killed' if killed[stage] else 'ended before the kill'}")
        command = [*NAS, "resume", str(run), "--quiet"]
    run_to_end(command)
    return killed


def result_of(run: Path) -> tuple[bytes, list[str]]:
    """The front's bytes and the retrained networks' results."""
    results = sorted(run.glob(result_file("*")))
    return (run / FRONT_FILE).read_bytes(), [file.read_text("utf-8") for file in results]


def measure(options: Options) -> dict[str, Any]:
    """Run both searches and compare.

    Raises:
        NasError: when one that is not killed fails.
    """
    request = ["--space", options.space, "--seed", options.seed]
    request += ["--preset", options.preset, "--objectives", "quality,flops"]
    with tempfile.TemporaryDirectory() as folder:
        calm, killed = Path(folder) / "calm", Path(folder) / "killed"
        run_to_end([*NAS, "search", *request, "--out", str(calm), "--quiet"])
        kills = killed_search(request, killed, stages_of(calm))
        measured = [
            (event["stage"], event["architecture_id"])
            for event in events_of(killed)
            if event["event"] == "ArchitectureMeasured"
        ]
        equal = result_of(calm) == result_of(killed)
    repeated = len(measured) - len(set(measured))
    numbers = {"evaluations": len(measured), "repeated": repeated}
    return {"equal": equal, "killed": kills, **numbers}


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
        f"killed in {sum(found['killed'].values())} of {len(found['killed'])} stages; "
        f"same results: {found['equal']}; {found['evaluations']} evaluations, "
        f"{found['repeated']} of them done twice"
    ],
    lambda found: found["equal"] and all(found["killed"].values()) and not found["repeated"],
    example="--seed 3",
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
