"""Asks a network of a run that was trained from scratch, in the process of `space_reader`."""

from __future__ import annotations

import base64
import importlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nas.results import networks
from nas.run.folder import RunFolder
from search_spaces.errors import DataError, NasError, UsageError
from search_spaces.settings import ImageInput
from service.api.problems import ProblemError
from service.data_uploads import check_not_deleted, name_of, other_data
from service.settings import UPLOADED_DATA, without_home

LIBRARIES = ("supernet.building", "supernet.tasks.opening", "nas.results.predictions", "PIL.Image")


def load_libraries() -> None:
    """Load what any network takes, which is no request's fault."""
    for name in LIBRARIES:
        importlib.import_module(name)


def ask_network(given: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a network, as a `PredictionOut`.

    Args:
        given: a `PredictRequest` as JSON, with the run's `folder` and the `network`.

    Raises:
        ProblemError: 422, without the server's paths, when there is no answer.
    """
    with tempfile.TemporaryDirectory() as scratch:
        picture = Path(scratch) / "picture"
        try:
            return _answer(given, picture)
        except NasError as error:
            run = Path(given["folder"])
            text = error.marked.replace(str(picture), "the picture").replace(str(run), "the run")
            raise ProblemError(422, without_home(text, run.parents[1])) from error


def _opened(folder: RunFolder) -> networks.OpenedData:
    """The data of a run.

    Raises:
        DataError: when they are gone or others, with what whoever has uploaded them can do.
    """
    data, root = folder.spec.data, folder.path.parents[1] / UPLOADED_DATA
    check_not_deleted(data, root)
    try:
        return networks.open_data(folder, None)
    except DataError as error:
        name = name_of(data, root)
        raise error if name is None else other_data(name) from error


def _answer(given: Mapping[str, Any], picture: Path) -> dict[str, Any]:
    from nas.results.predictions import cut_words, predict, reading_of  # brings along torch

    folder = RunFolder.open(Path(given["folder"]))
    spec = folder.spec
    if spec.evaluator is not None:
        raise UsageError(f"the networks of this search are known to {spec.evaluator} alone")
    wants_picture = isinstance(spec.space.model.input, ImageInput)
    if wants_picture != (given["picture"] is not None):
        raise UsageError(
            "this network reads pictures: give a PNG or JPEG"
            if wants_picture
            else "this network reads texts: give one"
        )
    if wants_picture:
        picture.write_bytes(base64.b64decode(given["picture"]))
    text = str(picture) if wants_picture else given["text"]
    network = networks.open_network(folder, given["network"], "cpu")
    opened = _opened(folder)
    if spec.space.task == "translation":
        networks.check_vocabularies(folder, opened)
    reading = reading_of(opened, spec.space.model)
    (found,) = predict(network, reading, [text], given["tokens"])
    warning = (
        None
        if opened.same
        else (
            "the data on the server are not those that the network learnt from; if these are read "
            "in another way, the answer means nothing"
        )
    )
    cut_at = found.cut_at
    note = None if cut_at is None else f"The text was {cut_words(reading, cut_at)}."
    answer = {"answer": found.answer, "chances": dict(found.chances), "warning": warning}
    return answer | {"cut_at": cut_at, "note": note}
