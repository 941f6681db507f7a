"""What a failure looks like: one sentence on stderr and an exit code, never a traceback.

Exit codes: 0 well done, 1 a run failed, 2 wrong use, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import errno
import os
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from nas.console.output import drop_output, tell, tell_error
from nas.run.folder import resume_command
from nas.run.layout import CRASH_FILE
from nas.run.termination import TERMINATED, Terminated
from search_spaces.errors import NasError

FAILED = 1
INTERRUPTED = 130

# The machine says no: the file and the reason tell all there is to know.
_REFUSALS = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
}
_UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def explained(run: Path | None = None) -> Iterator[None]:
    """Turn whatever goes wrong inside into a sentence and an exit code.

    Args:
        run: the run folder being worked on; messages tell how to go on with it, and the traceback
            of an unexpected error is kept there.

    Raises:
        typer.Exit: in place of every error, except those the parser of options reports itself.
    """
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except KeyboardInterrupt as stop:
        tell(f"stopped; go on with: {resume_command(run)}" if run else "stopped")
        code = TERMINATED if isinstance(stop, Terminated) else INTERRUPTED
        raise typer.Exit(code) from None
    except BrokenPipeError:
        drop_output()
        raise typer.Exit(FAILED) from None
    except NasError as error:
        tell_error(str(error))
        raise typer.Exit(error.exit_code) from error
    except Exception as error:
        if type(error).__module__.startswith(("typer.", "click.")):
            raise  # wrong use, which typer itself explains
        tell_error(_sentence(error, run))
        raise typer.Exit(FAILED) from None


def _sentence(error: Exception, run: Path | None) -> str:
    resume = f"; then go on with: {resume_command(run)}" if run else ""
    if isinstance(error, OSError) and error.errno in _FULL:
        where = run or error.filename or "the disk"
        return f"no space is left on the device of {where}: free some{resume}"
    if isinstance(error, OSError) and error.errno in _REFUSALS and error.filename:
        return _refusal(error, run)
    resume = f"; finished stages are kept, {resume_command(run)} goes on" if run else ""
    what = traceback.format_exception_only(error)[-1].strip().splitlines()[0]
    return f"this should not have happened: {what} ({_keep(error, run)}){resume}"


def _refusal(error: OSError, run: Path | None) -> str:
    """What the machine does not allow, and what to do about it."""
    file = Path(os.fsdecode(error.filename))
    said = f"{file}: {os.strerror(error.errno or 0).lower()}"
    again = f"; then go on with: {resume_command(run)}" if run else ""
    inside = run is not None and file.absolute().is_relative_to(run.absolute())
    if inside and error.errno in _UNWRITABLE:
        how = "writable" if error.errno == errno.EROFS else "readable and writable"
        return (
            f"{said}; make {run} {how}, or copy the run to where it is, and give the same command "
            "for the copy"
        )
    if error.errno == errno.EROFS:
        return f"{said}; make {file.parent} writable, or choose another place{again}"
    return f"{said}; put that right{again}" if run else said


def _keep(error: Exception, run: Path | None) -> str:
    """Write the traceback to a file; tell where."""
    text = "".join(traceback.format_exception(error))
    try:
        file = run / CRASH_FILE if run and run.is_dir() else _temporary_file()
        file.write_text(text, encoding="utf-8")
    except OSError as problem:
        return f"the traceback could not be kept: {problem.strerror}"
    return f"the traceback is in {file}"


def _temporary_file() -> Path:
    handle, name = tempfile.mkstemp(prefix="nas-crash-", suffix=".log")
    os.close(handle)
    return Path(name)
