"""What is done while a network is timed: a forward pass, a prompt, a token, or a whole text.

Shapes: B batch, M source positions, N target positions.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from latency.acceptance import (
    Conditions,
    SessionTimes,
    Settled,
    patience_s,
    reference_drift,
    settle,
)
from latency.device import usable_cores
from latency.machine import Watch, wait_for_quiet
from latency.runtimes import compiled, replayed
from latency.timer import Call, host_share, in_precision, inference, time_beside
from latency.timing import HostShare, median_copy
from latency.turns import computing, timing
from latency.workload import Workload
from latency.yardstick import Speed, yardstick_call
from nas.objectives import OBJECTIVES
from nas.request.workloads import check_runtime
from search_spaces.architecture import Architecture
from search_spaces.costs import params
from search_spaces.errors import UsageError
from search_spaces.heap import steady_heap
from search_spaces.settings import ImageInput
from search_spaces.space import SearchSpace
from supernet.beam_search import BeamSettings, beam_search, write_exactly
from supernet.building import build_network
from supernet.data.tokenizer import BOS, EOS, NUM_MARKS
from supernet.decoding_state import DecodingState
from supernet.extraction import StandAlone
from supernet.filled_state import filled_state, start_of
from supernet.sequence_models import LanguageModel, TranslationModel

# Makes the call of one network at its work, its weights random.
Maker = Callable[[Architecture], Call]

WARMUP = 1  # the timer calls each network once more, to see how long a call is
# What the reference is off in a session all its networks are off. Each copy of a small network lies
# elsewhere in memory: three of them scatter by 1.6 %, nine by 0.7 %. Large ones scatter less, and
# nine of them may not fit.
MOST_COPIES, LEAST_COPIES = 9, 3
COPIES_MB = 64.0
YARDSTICK_COPIES = 3
# Rounds of one session agree with each other, sessions do not: a network is built anew for each.
SESSION_ROUNDS = 3


def time_session(
    space: SearchSpace,
    reference: Architecture,
    architectures: Sequence[Architecture],
    workload: Workload,
    device: str,
    rounds: int,
    make: Maker | None = None,
) -> SessionTimes:
    """Time networks, a reference and the yardstick in interleaved rounds, with random weights.

    All are built anew for it, in a random order: where a network lies in memory then spoils one
    session and not all.

    Args:
        space: of the networks.
        reference: timed in every round, to correct for drift of the device.
        architectures: what to time; may be none.
        workload: what they do; see `nas.request.workloads`.
        device: where.
        rounds: samples of each.
        make: of their calls; None for torch's own. Another runtime is timed without the yardstick,
            which is torch's.
    """
    made = make or (lambda one: timed_call(space, one, workload, device))
    copies = [reference] * reference_copies(space, reference, rounds)
    order = random.sample(range(len(architectures)), len(architectures))
    with torch.random.fork_rng(devices=[]), steady_heap():
        torch.manual_seed(0)
        beside = [made(one) for one in copies]
        calls = [made(architectures[number]) for number in order]
        # First, in the middle and last, as the reference is.
        places = (0, len(calls) // 2 + 1, len(calls) + YARDSTICK_COPIES - 1) if make is None else ()
        for place in places:
            calls.insert(place, yardstick_call(device))
        began, watch = time.time(), Watch(device)
        there, timings = time_beside(
            beside, calls, device, dtype=workload.dtype, warmup=WARMUP, repeats=rounds
        )
        state = watch.state()
    yardsticks = [timings[place] for place in places]
    others = [timing for place, timing in enumerate(timings) if place not in places]
    by_number = dict(zip(order, others, strict=True))
    return SessionTimes(
        median_copy(there),
        reference_drift(there),
        tuple(by_number[number] for number in range(len(order))),
        state,
        round(began, 3),
        median_copy(yardsticks) if yardsticks else None,
    )


def reference_copies(space: SearchSpace, reference: Architecture, rounds: int) -> int:
    """Copies of the reference in a session: as many as are small together, 3 to 9.

    Two where there is a single round, which cannot tell much: copies of what takes seconds to build
    would not mend that.
    """
    if rounds == 1:
        return 2
    megabytes = 4e-6 * params(space.model, space.task, reference)
    return int(min(MOST_COPIES, max(LEAST_COPIES, COPIES_MB // megabytes)))


def time_until_accepted(
    time_some: Callable[[Sequence[int]], SessionTimes],
    count: int,
    device: str,
    sessions: int,
    unit_ms: float | None,
    speed: Speed,
) -> Settled:
    """Time calls in sessions until they are accepted or given up, see `latency.acceptance`.

    Args:
        time_some: a session with the calls of these numbers, and the reference.
        count: of the calls.
        device: where they run.
        sessions: calm ones that are wanted.
        unit_ms: what the reference took when it was timed first; None where this is the first time.
        speed: what is known of the machine.
    """
    threads = timing_threads(device)
    cores = usable_cores()

    def one_session(numbers: Sequence[int]) -> SessionTimes:
        with timing(device):
            return time_some(numbers)

    def wait(most_s: float, threads: int, cores: int) -> float:
        with timing(device):  # what rests for the timer does not disturb it
            return wait_for_quiet(most_s, threads, cores, watch=lambda: Watch(device))

    conditions = Conditions(threads, cores, unit_ms, sessions, patience_s(), wait=wait, speed=speed)
    return settle(one_session, count, conditions)


def timing_threads(device: str) -> int:
    """Threads of this process that compute while a device is timed."""
    # On a graphics card one thread launches the kernels.
    return torch.get_num_threads() if device == "cpu" else 1


def session_rounds(rounds: int) -> int:
    """Of so many rounds in all, those of one session."""
    return min(SESSION_ROUNDS, rounds)


def num_sessions(rounds: int) -> int:
    """Sessions that so many rounds make."""
    return -(-rounds // SESSION_ROUNDS)


def network_cost(
    name: str, space: SearchSpace, architecture: Architecture, workload: Workload, device: str
) -> float:
    """The value of an objective that is measured, of a network at its work.

    It is that of ``runtime=eager``, whatever the workload's.
    """
    measure = OBJECTIVES[name].measure
    assert measure is not None
    # What a graph works in is reserved once and for all, where nothing counts it.
    workload = replace(workload, runtime=None)

    def make() -> Call:
        # As for the timer, which enters its precision when all is made.
        with torch.autocast(torch.device(device).type, enabled=False):
            return timed_call(space, architecture, workload, device)

    with computing(device), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with in_precision(device, workload.dtype):
            return measure(make, device)


def network_host_share(
    space: SearchSpace, architecture: Architecture, workload: Workload, device: str
) -> HostShare:
    """How much of a network's time on a CUDA device is the host's.

    The texts of a translation are left on the device, whatever the runtime: to wait for them would
    count as the host's.
    """
    with timing(device), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        make = _eager_call if workload.runtime is None else timed_call
        call = make(space, architecture, workload, device)
        return host_share(call, device, dtype=workload.dtype)


def timed_call(
    space: SearchSpace, architecture: Architecture, workload: Workload, device: str
) -> Call:
    """A stand-alone network with random weights at its work, in evaluation mode.

    With another runtime than ``eager`` it is captured or compiled now.

    Args:
        space: of the network.
        architecture: the network.
        workload: what it does; see `nas.request.workloads`.
        device: where.

    Raises:
        UsageError: for a runtime that the device does not have, and for a network that cannot be
            captured or compiled.
    """
    check_runtime(workload, device)
    call = _eager_call(space, architecture, workload, device, reads=workload.runtime is None)
    if workload.runtime is None:
        return call
    graph = workload.runtime == "graph"
    try:
        if graph:
            return replayed(call, device, workload.dtype)
        return compiled(call, device, workload.dtype)
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        (why, *_) = str(error).strip().splitlines() or [type(error).__name__]
        what = "captured in a CUDA graph" if graph else "compiled"
        raise UsageError(
            f"the network {architecture.id} cannot be {what} ({why}): write runtime=eager in "
            f"place of runtime={workload.runtime}"
        ) from error


def _eager_call(
    space: SearchSpace,
    architecture: Architecture,
    workload: Workload,
    device: str,
    reads: bool = False,
) -> Call:
    """As `timed_call`, one operation after the other.

    Args:
        space: of the network.
        architecture: the network.
        workload: what it does.
        device: where.
        reads: whether the texts of a translation are read from the device at the end.
    """
    network = build_network(space.model, space.task, architecture).to(device).eval()
    inputs = example_inputs(space, workload).to(device)
    if isinstance(network.network, LanguageModel):
        return _language_call(network, inputs, workload, device)
    if workload.mode == "generate":
        write = _generate if reads else _write
        return lambda: write(network, inputs, workload, device)
    if isinstance(network.network, TranslationModel):
        target_BN = inputs.new_full((workload.batch, workload.target_length or 0), BOS)
        return lambda: network(inputs, target_BN)
    return lambda: network(inputs)


def _language_call(network: StandAlone, inputs_BN: Tensor, workload: Workload, device: str) -> Call:
    """A language model goes on from a full memory, where it has one.

    To decode, the state is filled beforehand: every call writes the token behind the same context.
    With ``runtime=eager`` that is one of fp32, as in all timings there are, which autocast has to
    cast for every token; with another one it is what the network itself would have left.
    """
    with inference(device, "float32" if workload.runtime is None else workload.dtype):
        return _continuing_call(network, inputs_BN, workload)


def _continuing_call(network: StandAlone, inputs_BN: Tensor, workload: Workload) -> Call:
    if workload.mode == "decode":
        filled = filled_state(network, inputs_BN)
        return lambda: network.step(inputs_BN[:, -1:], filled)
    state = start_of(network, inputs_BN)
    if workload.mode == "forward":
        return lambda: network.step(inputs_BN, state)
    if workload.mode == "prefill":
        return lambda: network.prefill(inputs_BN, state)
    return lambda: _continue(network, inputs_BN, state, workload.target_length or 0)


def example_inputs(space: SearchSpace, workload: Workload) -> Tensor:
    """A batch of random inputs of the workload's size, always the same."""
    generator = torch.Generator().manual_seed(0)
    source = space.model.input
    if isinstance(source, ImageInput):
        shape = (workload.batch, source.channels, source.image_size, source.image_size)
        return torch.randn(shape, generator=generator)
    shape_BM = (workload.batch, workload.source_length)
    least = min(NUM_MARKS, source.vocab_size - 1)
    return torch.randint(least, source.vocab_size, shape_BM, generator=generator)


def _generate(network: StandAlone, inputs_BM: Tensor, workload: Workload, device: str) -> object:
    """Write exactly `target_length` tokens, with a beam if there is one."""
    length = workload.target_length or 0
    settings = BeamSettings(
        beam_size=workload.beam or 1,
        max_length_factor=0.0,
        max_length_offset=length,
        min_length=length,
    )
    return beam_search(
        network.step,
        network.start(inputs_BM),
        [inputs_BM.shape[1]] * len(inputs_BM),
        bos=BOS,
        eos=EOS,
        max_length=length,
        settings=settings,
        device=device,
    )


def _write(network: StandAlone, inputs_BM: Tensor, workload: Workload, device: str) -> object:
    """As `_generate`, with the texts left on the device: nothing of it waits for that."""
    return write_exactly(
        network.step,
        network.start(inputs_BM),
        len(inputs_BM),
        workload.target_length or 0,
        bos=BOS,
        eos=EOS,
        beam_size=workload.beam or 1,
        device=device,
    )


def _continue(network: StandAlone, prompt_BM: Tensor, state: DecodingState, length: int) -> Tensor:
    """Greedy tokens behind a prompt."""
    logits, state = network.step(prompt_BM, state)
    token_B1 = logits[:, -1:].argmax(dim=-1)
    for _ in range(length - 1):
        logits, state = network.step(token_B1, state)
        token_B1 = logits[:, -1:].argmax(dim=-1)
    return token_B1
