"""`nas data prepare`: files of the user → a folder of memory-mapped data with a manifest.

The folder is built under a hidden name beside the place it goes to and gets its name when it is
complete, so that whatever stops a preparation leaves nothing that looks like data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from search_spaces.errors import DataError, UsageError
from search_spaces.files import building_folder
from search_spaces.tasks import TaskName
from search_spaces.wording import mark
from supernet.data.manifest import (
    FILE_NAME,
    Manifest,
    SplitRecord,
    check_files,
    read_manifest,
    record_files,
    request_digest,
    write_manifest,
)
from supernet.data.prepare.doctor import Doctor
from supernet.data.prepare.examples import plan_classification
from supernet.data.prepare.plan import Plan, PrepareRequest, refuse_equal_files
from supernet.data.prepare.text import plan_language_modelling, plan_translation
from supernet.data.text_files import Report


def _plan_embedding(request: PrepareRequest, doctor: Doctor, report: Report) -> Plan:
    """Brings along torch, which makes the embeddings and which other tasks do without."""
    from supernet.data.prepare.embedding import plan_embedding

    return plan_embedding(request, doctor, report)


PLANS: dict[TaskName, Callable[[PrepareRequest, Doctor, Report], Plan]] = {
    "translation": plan_translation,
    "language_modelling": plan_language_modelling,
    "classification": plan_classification,
    "embedding": _plan_embedding,
}


class Prepared(NamedTuple):
    """What was prepared.

    Attributes:
        manifest: of the folder.
        found: whether it was there already.
        ignored: what there is among the files that was not read.
        bad: what is wrong with examples that were left out, each with file and line.
        guessed: which columns were taken for source and target though no name says so.
    """

    manifest: Manifest
    found: bool
    ignored: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    guessed: str = ""


def prepare(request: PrepareRequest, report: Report) -> Prepared:
    """Prepare data, or find that they are prepared already.

    Args:
        request: what to prepare.
        report: called with what is being done, how much of it is done and how much there is.

    Raises:
        UsageError: when the request is wrong, its folder holds something else or was made by
            another process meanwhile, or two splits are one file.
        DataError: when files of the user cannot be used; the message tells all that is wrong with
            file and line.
    """
    check_free(request)
    if not request.source:
        raise UsageError(f"give the training data with {mark('source')}")
    if request.bfloat16 and request.task != "embedding":
        raise UsageError(
            f"{mark('bfloat16')} is for embeddings, which a checkpoint computes; leave it out"
        )
    doctor = Doctor(request.skip_bad)
    plan = PLANS[request.task](request, doctor, report)
    if not request.allow_overlap:
        refuse_equal_files(plan.contents)
    digest = request_digest(request.task, plan.settings, plan.inputs)
    told = tuple(doctor.ignored), tuple(doctor.bad), doctor.guessed
    present = _present(request, digest)
    if present is not None:
        return Prepared(present, True, *told)
    with building_folder(request.out, replace=False) as folder:
        content = plan.build(folder, report)
        manifest = Manifest(
            task=request.task,
            content=content.content,
            settings=plan.settings,
            request=digest,
            inputs=plan.inputs,
            tokenizer=content.tokenizer,
            token_dtype=content.token_dtype,
            image_shape=content.image_shape,
            label_names=content.label_names,
            width=content.width,
            splits=_with_skipped(content.splits, plan.skipped),
            files=record_files(folder),
        )
        write_manifest(folder, manifest)
    return Prepared(manifest, False, *told)


def _with_skipped(
    splits: Mapping[str, SplitRecord], skipped: Mapping[str, int]
) -> dict[str, SplitRecord]:
    return {
        name: split.model_copy(update={"dropped": {"bad": skipped[name]} | split.dropped})
        if skipped.get(name)
        else split
        for name, split in splits.items()
    }


def check_free(request: PrepareRequest) -> None:
    """See that the folder is not there, is empty, or holds prepared data of the same task.

    Raises:
        UsageError: otherwise; nothing in it is touched.
    """
    out = request.out
    if out.exists() and not out.is_dir():
        raise UsageError(f"{mark('out')} {out} is a file; name a folder that is not there yet")
    if not out.is_dir():
        return
    other = next((path.name for path in sorted(out.iterdir())), None)
    if other is not None and not (out / FILE_NAME).is_file():
        raise UsageError(
            f"{mark('out')} {out} holds other files ({other}); name a folder that is not there yet"
        )


def _present(request: PrepareRequest, digest: str) -> Manifest | None:
    """The manifest of a folder that holds exactly what is asked for.

    Raises:
        UsageError: when it holds other prepared data.
    """
    if not (request.out / FILE_NAME).is_file():
        return None
    advice = f"name another {mark('out')}, or delete that folder"
    try:
        manifest = read_manifest(request.out)
        if manifest.request != digest:
            raise UsageError(
                f"{mark('out')} {request.out} holds data for {manifest.task} prepared from other "
                f"files or with other options; {advice}"
            )
        check_files(request.out, manifest, manifest.files)
    except DataError as error:
        raise UsageError(
            f"{mark('out')} {request.out} holds damaged data ({error}); {advice}"
        ) from error
    return manifest
