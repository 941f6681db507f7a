"""Requests that nobody would think of: schemathesis against a service that runs.

    python -m experiments.service_fuzz --requests 5000

A service of its own is started, whose jobs take no time. Requests are generated from its OpenAPI
document, valid and invalid ones, until at least as many have been answered as asked for. Counted is
what the service itself has counted; an answer of the kind 5xx, or one that is not as described,
is a finding.
"""

from __future__ import annotations

import argparse
import http.client
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from experiments.service_process import REQUEST, Service, end

# Refusing a request that looks right, and taking one that looks wrong, is up to what it says.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)
PHASES = "examples,coverage,fuzzing"
STREAMS = "/events$"
MOST_ROUNDS = 20


def fuzz(url: str, token: str, *, examples: int, seed: int) -> tuple[bool, str]:
    """Generate requests for every operation but the endless streams.

    Args:
        url: of the service.
        token: of an administrator.
        examples: most for each operation.
        seed: of what is generated.

    Returns:
        Whether all answers were as described, and what schemathesis has written.
    """
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/api/v1/openapi.json"),
        *("--header", f"Authorization: Bearer {token}"),
        *("--checks", ",".join(CHECKS), "--phases", PHASES, "--exclude-path-regex", STREAMS),
        *("--max-examples", str(examples), "--seed", str(seed), "--continue-on-failure"),
        *("--no-color", "--warnings", "off", "--generation-database", "none"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout + done.stderr


def answered(port: int, token: str) -> dict[int, int]:
    """Status → how many requests the service has answered so."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
    text = connection.getresponse().read().decode()
    connection.close()
    found: dict[int, int] = {}
    for status, count in re.findall(r'nas_requests_total\{.*status="(\d+)"\} (\S+)', text):
        found[int(status)] = found.get(int(status), 0) + int(float(count))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Fuzz and print how many requests got which answer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        service = Service(Path(scratch) / "home", NAS_RUNNER="experiments.instant_job")
        server = service.serve(workers=1)
        try:
            service.wait_until_ready()
            service.api().surely("POST", "/jobs", REQUEST)
            fine = True
            for number in range(MOST_ROUNDS):
                url = f"http://127.0.0.1:{service.port}"
                passed, text = fuzz(url, service.token, examples=100, seed=options.seed + number)
                fine &= passed
                if not passed:
                    print(text)
                counts = answered(service.port, service.token)
                if sum(counts.values()) >= options.requests:
                    break
        finally:
            end(server)
    print(f"answers {sum(counts.values())}")
    for status, count in sorted(counts.items()):
        print(f"{status:<7} {count}")
    return 0 if fine and max(counts) < 500 else 1


if __name__ == "__main__":
    sys.exit(main())
