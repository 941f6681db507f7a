"""The files of a run that may be looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nas.run.layout import WORKERS_FOLDER, export_folder, record_file
from search_spaces.json_text import parse_json
from service.result_schemas import ArtifactOut

LONGEST_PATH = 300
CHECKSUMS_FILE = "checksums.json"


def list_artifacts(folder: Path) -> list[ArtifactOut]:
    """All files of a run, by path, with the checksums that its stages have recorded."""
    recorded = _recorded(folder)
    found = []
    for path in sorted(_files(folder)):
        name = path.relative_to(folder).as_posix()
        stage, sha256 = recorded.get(name, (None, None))
        found.append(ArtifactOut(path=name, size=path.stat().st_size, sha256=sha256, stage=stage))
    return found


def find_artifact(folder: Path, name: str) -> Path | None:
    """The file of that name, if it is a plain file of the run.

    Hidden files, links of any kind on the way, and names that lead elsewhere are not there; nor is
    what workers of a cluster have logged, which tells of machines.
    """
    parts = name.split("/")
    if len(name) > LONGEST_PATH or "\\" in name or "\0" in name:
        return None
    if not name.isascii() and name != name.encode("utf-8", "replace").decode():
        return None  # no answer could tell a name that is no text
    if any(part in ("", ".", "..") or part.startswith(".") for part in parts):
        return None
    if parts[0] == WORKERS_FOLDER:
        return None
    path = folder
    for part in parts:
        path = path / part
        if path.is_symlink():
            return None
    inside = path.resolve().is_relative_to(folder.resolve())
    return path if inside and path.is_file() else None


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not hidden and find_artifact(folder, path.relative_to(folder).as_posix()):
            yield path


def _recorded(folder: Path) -> dict[str, tuple[str, str]]:
    """File → the stage that wrote it and its checksum."""
    found: dict[str, tuple[str, str]] = {}
    for record in sorted(folder.glob(record_file("*"))):
        try:
            outputs = parse_json(record.read_text(encoding="utf-8"))["outputs"]
            found |= {str(name): (record.stem, str(sha256)) for name, sha256 in outputs.items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue  # a damaged record records nothing
    for sums in sorted(folder.glob(f"{export_folder('*', '*')}/{CHECKSUMS_FILE}")):
        found |= _exported(sums, folder)
    return found


def _exported(sums: Path, folder: Path) -> dict[str, tuple[str, str]]:
    """The checksums that an export has brought along."""
    where = sums.parent.relative_to(folder).as_posix()
    try:
        files = parse_json(sums.read_text(encoding="utf-8"))["sha256"]
        return {f"{where}/{name}": ("export", str(sha256)) for name, sha256 in files.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}  # as above
