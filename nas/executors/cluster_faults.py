"""What the hosts of a Ray cluster are found to be, and what is wrong with that for a search.

`judged` only compares: nothing here asks a host, and nothing imports Ray. What asks is
`nas.executors.ray_check`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from nas.executors.base import latency_resource

# Beyond that lines of logs and times of files tell another order than the true one.
CLOCK_TOLERANCE_S = 2.0
# Ray starts no smaller object store.
LEAST_STORE_BYTES = 75 * 2**20
_GIB = 2**30

Severity = Literal["fault", "note"]
About = Literal[
    "answer",
    "versions",
    "run",
    "data",
    "clock",
    "shared_memory",
    "gpus",
    "latency_resources",
    "token",
]
RunSight = Literal["same", "missing", "another", "unreadable", "not writable"]


@dataclass(frozen=True)
class Versions:
    """What a host computes with; None for what cannot be imported there.

    Attributes:
        python: of the interpreter that Ray starts, which is `executable`.
        executable: its path.
        package: of this package.
        code: digest of this package's files, because a version may be of many states.
        ray: of Ray.
        torch: of torch, with its build: ``2.13.0+cpu``.
        torch_cuda: the version of CUDA that torch was built for.
        torch_problem: why torch cannot be imported.
    """

    python: str
    executable: str
    package: str | None
    code: str | None
    ray: str
    torch: str | None
    torch_cuda: str | None = None
    torch_problem: str | None = None


@dataclass(frozen=True)
class DataSight:
    """What a host sees of the data.

    Attributes:
        manifest: sha256 of the manifest of a prepared folder; None for other data.
        damaged: the first of the files that the manifest names which is missing, or has another
            size than it says.
        entries: files and folders in the folder, but hidden ones; 1 for a file.
        size: bytes of the files among them.
    """

    manifest: str | None
    damaged: str | None
    entries: int
    size: int


@dataclass(frozen=True)
class Here:
    """The machine of the command, with which hosts are compared.

    Attributes:
        host: its name.
        versions: those of the command.
        token: whether this process asks for a token when a host speaks to it.
        data: what is seen of the data here; None where none were named.
    """

    host: str
    versions: Versions
    token: bool
    data: DataSight | None


@dataclass(frozen=True)
class Answer:
    """What a process on a host found there.

    Attributes:
        versions: what it would compute with.
        token: whether Ray asks for a token there.
        shared_memory: bytes of ``/dev/shm``, free or not; None on systems without it.
        cuda_devices: those torch sees.
        clock_ahead_s: by how much its clock is ahead of that of the command.
        clock_error_s: how far off that may be: half the way there and back.
        run: what it sees of the run folder, into which the command wrote a file; None where no
            folder was named.
        data: what it sees of the data; None where it sees nothing, or none were named.
    """

    versions: Versions
    token: bool
    shared_memory: int | None
    cuda_devices: int
    clock_ahead_s: float
    clock_error_s: float
    run: RunSight | None
    data: DataSight | None


@dataclass(frozen=True)
class HostFacts:
    """A node of the cluster: what Ray says of it, and what a process found there.

    Attributes:
        node: Ray's id of it.
        name: of the host.
        address: of the host.
        cpus: that Ray offers.
        gpus: that Ray offers.
        object_store: bytes that Ray keeps in memory for objects.
        latency_resources: those resources that reserve a device for timing, and others whose names
            begin like theirs.
        answer: None where there was none.
        silence: why there was none.
    """

    node: str
    name: str
    address: str
    cpus: float
    gpus: float
    object_store: int
    latency_resources: Mapping[str, float]
    answer: Answer | None
    silence: str | None = None

    @property
    def short_node(self) -> str:
        """Enough of Ray's id for people."""
        return self.node[:8]


@dataclass(frozen=True)
class ClusterFacts:
    """Everything that is known of a cluster.

    Attributes:
        here: the machine of the command.
        run: path of the run folder, if one was named.
        data: path of the data, if some were named.
        hosts: its nodes, by name.
    """

    here: Here
    run: str | None
    data: str | None
    hosts: Sequence[HostFacts]

    @property
    def several_on_one_host(self) -> bool:
        """Whether names do not tell the nodes apart."""
        return len({one.name for one in self.hosts}) < len(self.hosts)

    def label(self, host: HostFacts) -> str:
        """A host's name and address, with its node's id where there are several on one host."""
        node = f", node {host.short_node}" if self.several_on_one_host else ""
        return f"{host.name} ({host.address}{node})"

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return asdict(self)


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or that is good to know.

    Attributes:
        severity: a ``fault`` will hinder a search; a ``note`` may be meant so.
        about: what it is about.
        node: Ray's id of the node; None where it is about the cluster.
        sentence: what was found, on which host, and what to do.
    """

    severity: Severity
    about: About
    node: str | None
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return asdict(self)


def judged(cluster: ClusterFacts) -> list[Finding]:
    """All that is wrong with a cluster or good to know, in the order of hosts."""
    found: list[Finding] = []
    for host in cluster.hosts:
        name = cluster.label(host)
        if host.answer is None:
            sentence = (
                f"{name} does not answer ({host.silence}): look at ray status, and there at "
                "/tmp/ray/session_latest/logs; ray stop ends what is left of a node; "
                f"{_silent_for_a_token(cluster)}"
            )
            found.append(Finding("fault", "answer", host.node, sentence))
            continue
        for judge in _JUDGES:
            found += judge(cluster, host, host.answer, name)
    for judge_all in (_token, _latency_of_all):
        found += judge_all(cluster)
    return found


def _silent_for_a_token(cluster: ClusterFacts) -> str:
    """Another reason: hosts where tokens are asked for and others do not hear each other."""
    if cluster.here.token:
        return (
            "this command uses a token: where Ray was started without one, export "
            "RAY_AUTH_MODE=disabled here, or start Ray again with the token on every host"
        )
    return "a host is silent too where Ray asks for a token that this command does not use"


_Judge = Callable[[ClusterFacts, HostFacts, Answer, str], Iterator[Finding]]


def _versions(
    cluster: ClusterFacts, host: HostFacts, answer: Answer, name: str
) -> Iterator[Finding]:
    """Missing packages, and others than those of the command."""

    def fault(sentence: str) -> Finding:
        return Finding("fault", "versions", host.node, f"{name} {sentence}")

    theirs, ours = answer.versions, cluster.here.versions
    if theirs.package is None:
        yield fault(
            f"lacks this package for {theirs.executable}, which Ray starts there: install "
            f"the version of this command, {ours.package}, with {theirs.executable} -m pip install "
            "'nas-service[ray]', or start Ray from an environment that has it"
        )
    if theirs.torch is None:
        yield fault(
            f"cannot import torch ({theirs.torch_problem}) with {theirs.executable}, which Ray "
            "starts there: install the torch of this command there"
        )
    pairs = [
        ("Python", theirs.python, ours.python),
        ("nas", theirs.package, ours.package),
        ("Ray", theirs.ray, ours.ray),
        ("torch", _release(theirs.torch), _release(ours.torch)),
    ]
    others = [one for one in pairs if None not in one and one[1] != one[2]]
    if others:
        there = ", ".join(f"{what} {version}" for what, version, _ in others)
        here = ", ".join(f"{what} {version}" for what, _, version in others)
        yield fault(
            f"has {there}, and this command {here}: install the same on every host, and start Ray "
            "there again"
        )
    elif theirs.package and theirs.code != ours.code:
        yield fault(
            f"has other code of nas {theirs.package} (digest {theirs.code}) than this command "
            f"({ours.code}): bring both to the same state"
        )


def _release(version: str | None) -> str | None:
    """Without the build: a head without a graphics card has another build of torch, rightly."""
    return None if version is None else version.partition("+")[0]


def _run(cluster: ClusterFacts, host: HostFacts, answer: Answer, name: str) -> Iterator[Finding]:
    """Whether it is the same run folder."""
    one_disk = "mount the disk of the run folder under the same path on every host (NFS, EFS, FSx)"
    sentences: Mapping[RunSight, str] = {
        "missing": f"does not see the run folder {cluster.run}: {one_disk}",
        "another": f"has another folder at {cluster.run}, without the file that this command has "
        f"just written into it: {one_disk}",
        "unreadable": f"may not read what this command writes into {cluster.run}: start Ray there "
        "as the user of this command, or give that user the right to read",
        "not writable": f"cannot write into the run folder {cluster.run}, where checkpoints go: "
        "mount it for writing, and start Ray there as a user who may",
    }
    if answer.run is not None and answer.run != "same":
        yield Finding("fault", "run", host.node, f"{name} {sentences[answer.run]}")


def _data(cluster: ClusterFacts, host: HostFacts, answer: Answer, name: str) -> Iterator[Finding]:
    """Whether it is the same data."""
    ours, theirs = cluster.here.data, answer.data
    if ours is None:
        return
    again = "copy them there again, or mount the same disk there"
    sentence = None
    if theirs is None:
        sentence = (
            f"does not see the data {cluster.data}: copy them there under the same path, or mount "
            "their disk"
        )
    elif theirs.manifest != ours.manifest:
        there = "another manifest" if theirs.manifest else "no manifest"
        sentence = f"has other data at {cluster.data}, with {there}: {again}"
    elif theirs.damaged is not None:
        sentence = (
            f"has incomplete data at {cluster.data}: {theirs.damaged} is missing, or has another "
            f"size than the manifest says; {again}"
        )
    elif ours.manifest is None and (theirs.entries, theirs.size) != (ours.entries, ours.size):
        sentence = (
            f"has other data at {cluster.data}: {_amount(theirs)}, and this machine "
            f"{_amount(ours)}; {again}"
        )
    if sentence is not None:
        yield Finding("fault", "data", host.node, f"{name} {sentence}")


def _amount(data: DataSight) -> str:
    return f"{data.entries:,} entr{'y' if data.entries == 1 else 'ies'} with {data.size:,} bytes"


def _clock(cluster: ClusterFacts, host: HostFacts, answer: Answer, name: str) -> Iterator[Finding]:
    """Whether it is far ahead or behind, whatever the way there and back took."""
    ahead = answer.clock_ahead_s
    if abs(ahead) - answer.clock_error_s <= CLOCK_TOLERANCE_S:
        return
    side = "ahead of" if ahead > 0 else "behind"
    yield Finding(
        "fault",
        "clock",
        host.node,
        f"{name} has a clock that is {abs(ahead):,.1f} s {side} that of this machine "
        f"({cluster.here.host}): times in logs and of files contradict each other; have chrony or "
        "systemd-timesyncd set both (timedatectl set-ntp true)",
    )


def _memory(_: ClusterFacts, host: HostFacts, answer: Answer, name: str) -> Iterator[Finding]:
    """Whether Ray's objects find room in shared memory; Ray takes the disk where they do not."""
    room, store = answer.shared_memory, host.object_store
    if room is None or store <= room:
        return
    most = int(room * 0.9)
    smaller = (
        f", or ray start with --object-store-memory={most}" if most > LEAST_STORE_BYTES else ""
    )
    yield Finding(
        "fault",
        "shared_memory",
        host.node,
        f"{name} has {_binary(room)} of shared memory (/dev/shm) for an object store of "
        f"{_binary(store)}, which Ray therefore keeps on the disk: start its container with "
        f"--shm-size={math.ceil(store * 1.1 / _GIB)}gb (shm_size in Compose){smaller}",
    )


def _binary(size: int) -> str:
    return f"{size / _GIB:.3g} GiB" if size >= _GIB else f"{size / 2**20:.3g} MiB"


def _gpus(_: ClusterFacts, host: HostFacts, answer: Answer, name: str) -> Iterator[Finding]:
    """Whether torch and Ray see the same graphics cards."""
    seen, offered = answer.cuda_devices, int(host.gpus)
    if answer.versions.torch is None or seen == offered:
        return
    if seen < offered:
        why = (
            "compare nvidia-smi and CUDA_VISIBLE_DEVICES there with what Ray was started with"
            if answer.versions.torch_cuda
            else f"torch {answer.versions.torch} is a build for processors: install one for CUDA"
        )
        sentence = f"offers {_cards(offered)} to Ray, of which torch can use {seen}: {why}"
        yield Finding("fault", "gpus", host.node, f"{name} {sentence}")
    else:
        yield Finding(
            "note",
            "gpus",
            host.node,
            f"{name} has {_cards(seen)}, and offers {offered} to Ray: ray start with "
            f"--num-gpus={seen} offers all",
        )


def _cards(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def _latency(_: ClusterFacts, host: HostFacts, answer: Answer, name: str) -> Iterator[Finding]:
    """Whether the devices that are offered for timing are there, and called as they should be."""

    def fault(sentence: str) -> Finding:
        return Finding("fault", "latency_resources", host.node, f"{name} offers {sentence}")

    cuda, known = latency_resource("cuda"), {latency_resource(one) for one in ("cpu", "cuda")}
    for strange in sorted(set(host.latency_resources) - known):
        yield fault(
            f"the resource {strange}, for which no search asks: it has to be called "
            f"{' or '.join(sorted(known))}"
        )
    if cuda not in host.latency_resources or answer.versions.torch is None:
        return
    if not answer.cuda_devices:
        yield fault(
            f"{cuda}, and torch sees no CUDA device there: start Ray there without that resource, "
            f"or with {latency_resource('cpu')} to time on its processor"
        )
    elif not host.gpus:
        yield fault(
            f"{cuda} and no GPU to Ray, so a timing would wait for one for ever: start Ray there "
            "with --num-gpus too"
        )


_JUDGES: Sequence[_Judge] = (_versions, _run, _data, _clock, _memory, _gpus, _latency)


def _token(cluster: ClusterFacts) -> Iterator[Finding]:
    """Whether all hosts ask for a token, or none does."""
    answered = [one for one in cluster.hosts if one.answer is not None]
    asking = [cluster.label(one) for one in answered if one.answer and one.answer.token]
    others = [cluster.label(one) for one in answered if one.answer and not one.answer.token]
    if asking and others:
        sentence = (
            f"Ray asks for a token on {', '.join(asking)} and does not on {', '.join(others)}, "
            "where anybody who reaches it can run code: give every host the same token, set "
            "RAY_AUTH_MODE=token, and start Ray again there"
        )
        yield Finding("fault", "token", None, sentence)
    elif others:
        sentence = (
            "the cluster has no token: it runs whatever anybody sends who reaches its port. Keep "
            "it in a network of its own, or give every host the same token (ray get-auth-token "
            "--generate) and start Ray again"
        )
        yield Finding("note", "token", None, sentence)


def _latency_of_all(cluster: ClusterFacts) -> Iterator[Finding]:
    """Whether any host lets networks be timed."""
    cpu, cuda = latency_resource("cpu"), latency_resource("cuda")
    offered = {name for host in cluster.hosts for name in host.latency_resources}
    cards = any(one.gpus for one in cluster.hosts)
    kind = cuda if cards else cpu
    start = f"ray start … --resources='{{\"{kind}\": 1}}'"
    if not offered & {cpu, cuda}:
        yield Finding(
            "fault",
            "latency_resources",
            None,
            f"no host offers its device for timing, so searches with an objective or limit in "
            f"milliseconds cannot time networks: start one host of the kind that counts with "
            f"{start}, or search with --device-profile",
        )
    elif cards and cuda not in offered:
        yield Finding(
            "note",
            "latency_resources",
            None,
            f"no host offers a GPU for timing, which a search with --device cuda needs: {start} on "
            "one of them",
        )
