"""What a stage reads as one digest: where it is the recorded one, its work is done."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from nas.run.folder import RunFolder, checksum
from nas.run.stages import Stage


def stage_digest(folder: RunFolder, stage: Stage) -> str:
    """What the stage reads: the spec, the files of the stages that it needs, and others."""
    read = {}
    for name in stage.needs:
        record = folder.record(name)
        read[name] = None if record is None else dict(record.outputs)
    whole = [folder.spec.digest, stage.name, read]
    files = [name for name in stage.reads if (folder.path / name).exists()]
    if files:  # without, the digest is that of versions that knew none
        whole.append({name: checksum(folder.path / name) for name in files})
    text = json.dumps(whole, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def stage_digests(folder: RunFolder, stage: Stage) -> tuple[str, ...]:
    """The digest, and behind it that of earlier versions where these counted less."""
    found = [stage_digest(folder, stage)]
    if stage.uncounted:
        counted = tuple(name for name in stage.needs if name not in stage.uncounted)
        found.append(stage_digest(folder, replace(stage, needs=counted)))
    return tuple(found)
