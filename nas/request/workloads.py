"""Which workloads the networks of a space can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latency.workload import BEHIND_CONTEXT, Workload
from nas.objectives import base_workload
from search_spaces.errors import UsageError
from search_spaces.settings import ImageInput
from search_spaces.space import SearchSpace
from search_spaces.tasks import TASKS

_OF_DECODERS = ("context", "allocator")
_OF_WRITING = ("beam", "target")


def read_workload(space: SearchSpace, text: str) -> Workload:
    """The workload that is asked for, over the space's own.

    Args:
        space: of the networks.
        text: ``KEY=VALUE,…``.

    Raises:
        UsageError: for an empty text or another form, for keys of what the networks have not, and
            as `latency.workload.Workload`.
    """
    if not text.strip():
        raise UsageError("the workload is empty: write KEY=VALUE, as in batch=1, or leave it out")
    pairs = (part.partition("=") for part in text.split(","))
    _check_keys(space, {key.strip(): value.strip() for key, _, value in pairs})
    return Workload.parse(text, space.workload)


def own_workload(space: SearchSpace) -> Workload:
    """The workload of a space's ``[workload]`` table.

    Raises:
        UsageError: where there is none, or its networks cannot do it.
    """
    _check_keys(space, space.workload)
    workload = base_workload(space)
    check_workload(space, workload)
    return workload


def check_workload(space: SearchSpace, workload: Workload) -> None:
    """Refuse a workload that the networks of a space cannot do.

    Args:
        space: of the networks.
        workload: its lengths in tokens, or in patches of an image.

    Raises:
        UsageError: saying what is wrong with it.
    """
    task = TASKS[space.task]
    if task.classifies:
        _check_writes_nothing(space, workload)
    if workload.mode in BEHIND_CONTEXT and not task.continues:
        raise UsageError(
            f"the workload's mode is {workload.mode}, but the networks of the space {space.name} "
            "do not go on with a text; leave out mode"
        )
    if task.crosses and workload.target_length is None:
        raise UsageError(
            f"the workload of the space {space.name} needs the target's length, as in target=30"
        )
    if isinstance(space.model.input, ImageInput):
        _check_patches(space, space.model.input.num_tokens, workload)
    else:
        _check_lengths(space, workload)


def check_runtime(workload: Workload, device: str) -> None:
    """Refuse a runtime that a device does not have.

    Args:
        workload: to be timed.
        device: ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        UsageError: for a CUDA graph on a processor.
    """
    if workload.runtime == "graph" and device == "cpu":
        other = "" if workload.mode == "generate" else ", or write runtime=compile"
        raise UsageError(
            "runtime=graph replays a CUDA graph, which takes a graphics card, and the device is "
            f"cpu; leave out runtime{other}"
        )


def longest_source(space: SearchSpace) -> int:
    """The most tokens that a network of the space reads besides a class token."""
    return space.model.max_length - space.model.class_token


def _check_keys(space: SearchSpace, given: Mapping[str, Any]) -> None:
    """Refuse what is said of a decoder where there is none, before anything that it would need."""
    task = TASKS[space.task]
    if not task.classifies:
        return
    networks = f"the networks of the space {space.name} {task.does}"
    for key in _OF_WRITING:
        if key in given and given.get("mode") != "generate":
            raise UsageError(f"{networks} and write nothing; leave out {key}")
    for key in _OF_DECODERS:
        if key in given:
            raise UsageError(
                f"{networks} and have no decoder, of which the workload's {key} is; leave out {key}"
            )
    if given.get("mode") == "generate":
        raise _writes_nothing(space)


def _writes_nothing(space: SearchSpace) -> UsageError:
    return UsageError(
        f"the workload of the space {space.name} is to generate text, but its networks "
        f"{TASKS[space.task].does}; leave out mode, beam and target"
    )


def _check_writes_nothing(space: SearchSpace, workload: Workload) -> None:
    if workload.mode == "generate":
        raise _writes_nothing(space)
    if workload.target_length is not None:
        raise UsageError(
            f"the workload's target is {workload.target_length}, but the networks of the space "
            f"{space.name} {TASKS[space.task].does} and write nothing; leave out target"
        )


def _check_patches(space: SearchSpace, patches: int, workload: Workload) -> None:
    if workload.source_length != patches:
        raise UsageError(
            f"the workload's source is {workload.source_length}, but every image of the space "
            f"{space.name} has {patches} patches; write source={patches}"
        )


def _check_lengths(space: SearchSpace, workload: Workload) -> None:
    lengths = {"source": workload.source_length, "target": workload.target_length or 0}
    if TASKS[space.task].continues and workload.mode == "generate":
        lengths = {"source and target together": sum(lengths.values())}
    if workload.mode == "decode":
        behind = workload.positions_read + 1
        lengths = {"source": workload.source_length, "context with the token behind it": behind}
    elif workload.context is not None:
        lengths["context"] = workload.context
    for name, length in lengths.items():
        if length > longest_source(space):
            less = ", less one for the class token" if space.model.class_token else ""
            raise UsageError(
                f"the workload's {name} is {length} tokens, but max_length of the space "
                f"{space.name} is {space.model.max_length}{less}"
            )
