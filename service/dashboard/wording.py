"""What messages call things where they are read on a page, before a form."""

from __future__ import annotations

from collections.abc import Mapping

from nas.request.fields import shown
from search_spaces.wording import RESUME, told
from service.api.catalog import Dataset
from service.api.schemas import JobRequest
from service.wording import of_field

# Of a table → what it is called, and the tasks whose examples have it.
COLUMNS = {
    "text": ("texts", "classification language_modelling embedding"),
    "image": ("pictures", "classification"),
    "label": ("labels", "classification"),
    "source": ("sources", "translation"),
    "target": ("translations", "translation"),
    "query": ("queries", "embedding"),
    "passage": ("passages", "embedding"),
}
# Field of a preparation that some tasks have alone → these.
OF_TASKS = {"image_size": "classification", "tokenizer": "language_modelling embedding"}
# Field of a preparation → its label in the form.
LABELS = {
    "source": "File",
    **{f"columns.{role}": f"Column of {what}" for role, (what, _) in COLUMNS.items()},
    "columns": "Column of …",
    "group_by": "Column of groups",
    "image_size": "Side of pictures, pixels",
    "tokenizer": "Checkpoint",
    "skip_bad": "leave out examples that cannot be used",
}
# What else the pages have a control for → its label.
_OTHERS = {"space": "Space", "objectives": "Objectives", "limits": "Limits", RESUME: "Retry"}


def no_space_for(dataset: Dataset) -> str:
    """What to do with a data set that networks of no space can read."""
    told = f"no space of this server suits {dataset.name}: "
    if dataset.task == "embedding":
        return f"{told}begin with the checkpoint whose embeddings it holds"
    return (
        f"{told}prepare the same file with nas data prepare --out DIR, write a space for it with "
        "nas space new --data DIR > FILE, and submit that with nas submit --space FILE "
        f"--dataset {dataset.name}"
    )


def _labels() -> Mapping[str, str]:
    request = {name: shown(field).label for name, field in JobRequest.model_fields.items()}
    return {**{name: label for name, label in request.items() if label}, **LABELS, **_OTHERS}


_LABELS = _labels()


def of_control(field: str) -> str:
    """The label of the control of a field, or of the button that does a thing."""
    return f"“{_LABELS[field]}”" if field in _LABELS else of_field(field)


def for_pages(text: str) -> str:
    """A message with the labels of the forms."""
    return told(text, of_control)
