"""What ``docker/hosts`` makes: separate hosts, a network that can be cut, nothing that stays."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from experiments.hosts import SCRIPT, Hosts, hosts, leaf
from search_spaces.errors import ExecutorError

pytestmark = pytest.mark.hosts

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with hosts(tmp_path_factory.mktemp("hosts"), 2) as made:
        yield made


def said(made: Hosts, host: str, *command: str) -> str:
    return made.run(host, command).stdout.strip()


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NAS_HOSTS_DIR": str(folder)}
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, env=environment)


def listening(made: Hosts, host: str) -> subprocess.Popen[bytes]:
    """A process that answers ``well`` to whoever connects; it listens when this is given back."""
    code = (
        "import socket\n"
        "door = socket.create_server(('', 7000))\n"
        "print('listening', flush=True)\n"
        "while True:\n"
        "    door.accept()[0].sendall(b'well')"
    )
    process = made.start(host, [sys.executable, "-c", code], output=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"listening\n"
    return process


def heard(made: Hosts, host: str, address: str, seconds: float = 30.0) -> str:
    """What one host hears from another, or the name of the error."""
    code = (
        "import socket, sys\n"
        "try:\n"
        "    line = socket.create_connection((sys.argv[1], 7000), float(sys.argv[2]))\n"
        "    print(line.recv(10).decode())\n"
        "except OSError as error:\n"
        "    print(type(error).__name__)"
    )
    return said(made, host, sys.executable, "-c", code, address, str(seconds))


def test_each_host_has_its_own_name_processes_files_and_memory(two: Hosts) -> None:
    assert two.addresses == {"host-0": "10.83.0.1", "host-1": "10.83.0.2"}
    assert [said(two, host, "hostname") for host in two.addresses] == list(two.addresses)
    for place in ("/tmp", "/dev/shm", "$HOME"):
        two.run("host-0", ["sh", "-c", f"echo here > {place}/mine"])
        assert said(two, "host-1", "sh", "-c", f"ls {place}/mine 2>/dev/null || echo none") == (
            "none"
        )
    assert said(two, "host-0", "sh", "-c", "cat /proc/1/comm") in ("bash", "hosts")
    assert "eth0" in said(two, "host-0", "ip", "-brief", "link")


def test_one_folder_is_shared_also_where_it_lies_in_tmp(two: Hosts) -> None:
    file = two.shared / "told"
    two.run("host-0", ["sh", "-c", f"echo by host-0 > {file}"])
    assert said(two, "host-1", "cat", str(file)) == "by host-0" == file.read_text().strip()


def test_a_command_keeps_its_folder_variables_and_code(two: Hosts) -> None:
    assert said(two, "host-0", "pwd") == str(ROOT)
    assert two.run("host-0", ["sh", "-c", "echo $A"], {"A": "b c"}).stdout == "b c\n"
    assert two.run("host-0", ["sh", "-c", "exit 7"], check=False).returncode == 7


def test_a_host_that_is_cut_is_not_heard_until_it_joins(two: Hosts) -> None:
    process = listening(two, "host-1")
    assert heard(two, "host-0", "host-1") == "well"
    two.cut("host-1")
    assert heard(two, "host-0", "host-1", 0.3) in ("TimeoutError", "OSError")
    two.join("host-1")
    assert heard(two, "host-0", "host-1") == "well"
    os.kill(leaf(process.pid), signal.SIGKILL)
    assert process.wait() != 0
    assert process.stdout is not None
    process.stdout.close()


TO_AND_FRO = """import hashlib, os, socket, sys, time
line = socket.create_connection((sys.argv[1], 7000), 60)
began, data = time.monotonic(), os.urandom(1 << 20)
line.sendall(data)
line.shutdown(socket.SHUT_WR)
came = b"".join(iter(lambda: line.recv(1 << 16), b""))
print(came.decode() == hashlib.sha256(data).hexdigest(), int(time.monotonic() - began > 0.04))
"""
HASHING = """import hashlib, socket
door = socket.create_server(("", 7000))
print("listening", flush=True)
while True:
    line, _ = door.accept()
    data = b"".join(iter(lambda: line.recv(1 << 16), b""))
    line.sendall(hashlib.sha256(data).hexdigest().encode())
    line.close()
"""


def test_over_a_slow_link_all_arrives_later_also_after_a_cut(two: Hosts) -> None:
    process = two.start("host-1", [sys.executable, "-c", HASHING], output=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"listening\n"
    links = said(two, "switch", "ip", "-brief", "link")

    def sent() -> str:
        return said(two, "host-0", sys.executable, "-c", TO_AND_FRO, "host-1")

    two.slow("host-1", "40ms", "1%")
    assert sent() == "True 1"
    two.cut("host-1")
    two.join("host-1")
    two.slow("host-1", "60ms")  # another delay in place of the first
    assert sent() == "True 1"
    two.slow("host-1", "0ms")
    assert sent().startswith("True")
    # Nothing of it is left between the hosts.
    assert said(two, "switch", "ip", "-brief", "link") == links
    os.kill(leaf(process.pid), signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_shared_memory_can_be_made_smaller(two: Hosts) -> None:
    two.run("host-1", ["mount", "-o", "remount,size=64m", "/dev/shm"])
    sizes = [
        said(two, host, "sh", "-c", "df --output=size /dev/shm | tail -1") for host in two.addresses
    ]
    assert sizes == [str(512 * 1024), str(64 * 1024)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["cut", "host-7"], "there is no host 'host-7'; there are: host-0 host-1"),
        (["exec", "host-7", "true"], "there is no host 'host-7'; there are: host-0 host-1"),
        (["exec", "host-0"], "say where to run what"),
        (["up"], "hosts are up already in"),
        (["up", "none"], "'none' is no number of hosts from 1 to 99"),
        (["slow", "host-7", "5ms"], "there is no host 'host-7'"),
        (["slow", "host-1", "5"], "'5' is no delay: write 50ms"),
        (["slow", "host-1", "5ms", "1"], "'1' is no share that is lost: write 1%"),
        (["turn"], "hosts exec HOST COMMAND…"),
    ],
)
def test_what_is_wrong_is_said(two: Hosts, words: Sequence[str], told: str) -> None:
    done = call(two.shared.parent, *words)
    assert done.returncode == 2
    assert told in done.stdout + done.stderr


def held(folder: Path) -> bool:
    """Whether a process of the hosts is left, all of which hold the lock."""
    return subprocess.run(["flock", "--nonblock", folder / "lock", "true"]).returncode != 0


def test_hosts_of_the_shell_stay_until_down(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    try:
        made = call(folder, "up", "1")
        assert (made.returncode, made.stdout) == (0, "10.83.0.1 host-0\n")
        assert call(folder, "exec", "host-0", "hostname").stdout == "host-0\n"
        assert held(folder)
    finally:
        ended = call(folder, "down")
    assert ended.returncode == 0 and not held(folder)
    assert sorted(one.name for one in folder.iterdir()) == ["lock", "shared"]
    again = call(folder, "exec", "host-0", "true")
    assert again.returncode == 2 and "no hosts are up" in again.stderr


def test_all_ends_with_the_process_that_asked_for_them_though_it_is_killed(tmp_path: Path) -> None:
    code = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from experiments.hosts import Hosts\n"
        "made = Hosts(Path(sys.argv[1]), 1)\n"
        "made.start('host-0', ['sleep', 'infinity'])\n"
        "print('up', flush=True)\n"
        "signal.pause()"
    )
    links = re.findall(r"^\d+: ([^:@]+)", _links(), re.MULTILINE)
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    process.kill()
    process.wait()
    process.stdout.close()
    # The lock is free once the last of their processes is gone.
    subprocess.run(["flock", tmp_path / "lock", "true"], check=True)
    assert re.findall(r"^\d+: ([^:@]+)", _links(), re.MULTILINE) == links
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


def _links() -> str:
    return subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout


def test_hosts_that_cannot_be_made_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ExecutorError, match="made no hosts"):
        Hosts(tmp_path, 0)
