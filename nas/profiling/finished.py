"""A profile that is finished already: the same request is not timed again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nas.profiling.device_profile import DeviceProfile, read_device_profile
from nas.profiling.files import check_new_file
from nas.profiling.journal import differences
from search_spaces.errors import NasError, UsageError


def finished_profile(out: Path, request: Mapping[str, Any]) -> DeviceProfile | None:
    """The profile at `out`, where it is what a request would make.

    Compared is all that decides its content and that it tells: the name, the device with its
    threads and runtime, the space's settings and choices, the workloads, the number of networks
    and the seed. How often each network was timed it does not tell.

    Args:
        out: the file.
        request: as `ProfileRequest.to_json` makes it, with the ``name`` of the profile.

    Returns:
        None where the file can be written anew.

    Raises:
        UsageError: for a file of something else, or one that cannot be written.
    """
    if not out.is_file():
        check_new_file("--out", out)
        return None
    try:
        made = read_device_profile(out)
    except NasError:
        check_new_file("--out", out)
        raise
    there = _request_of(made)
    here = {name: request[name] for name in there}
    if there != here:
        raise UsageError(
            f"--out {out} is there already, the profile of a request which differs in "
            f"{differences(there, here)}: name a file to be written, or delete that one"
        )
    return made


def _request_of(made: DeviceProfile) -> dict[str, Any]:
    return {
        "name": made.name,
        "device": made.device.to_json(),
        "space": made.genes,
        "settings": made.settings,
        "workloads": [one.workload.to_json() for one in made.workloads],
        "samples": max(len(one.measured) for one in made.workloads),
        "seed": made.seed,
    }
