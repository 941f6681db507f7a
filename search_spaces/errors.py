"""Every error this project raises on purpose, named by what the caller should do about it.

::

    NasError                     one clear sentence for the user; the command exits with 1 or 2
    ├── UsageError               the request itself is wrong: change the request (exit code 2)
    │   ├── UnknownNameError     no space, data set, preset … of that name: pick a listed one
    │   ├── SpaceFileError       a space's TOML is wrong: mend the line it names
    │   ├── SettingError         numbers of generated data do not go together: change what it names
    │   ├── ArchitectureError    an architecture does not belong to the space or is malformed
    │   ├── UnreachableLimitError  no network can meet the limit: raise it
    │   ├── TooLargeError        a training does not fit into a graphics card: lower what it names
    │   └── RunConflictError     the run folder belongs to another request: choose another folder
    ├── DataError                a file it was given is missing, damaged or of another kind: give
    │                            another one (exit code 2)
    ├── DamagedRunError          a file of a run folder is damaged: `nas resume` redoes that stage
    ├── DivergedError            training produced NaN or infinity: lower the learning rate
    ├── EvaluationError          most networks cannot be evaluated: mend what the message names
    └── ExecutorError            workers cannot be had or were lost: see to the cluster, resume
"""

from __future__ import annotations

from search_spaces.wording import of_commands


class NasError(Exception):
    """Root of every deliberate error; its text is shown to the user as it is.

    Attributes:
        field: of a request, which is at fault; None where that is not known.
    """

    exit_code = 1
    field: str | None = None

    def __str__(self) -> str:
        """The message as the commands say it."""
        return of_commands(self.marked)

    @property
    def marked(self) -> str:
        """The message with the marks of `search_spaces.wording`, for others to say it."""
        return super().__str__()


class UsageError(NasError):
    """The request is wrong and nothing was started."""

    exit_code = 2


class UnknownNameError(UsageError):
    """A name that is not registered; the message suggests the nearest one."""


class SpaceFileError(UsageError):
    """A search space's TOML is malformed; the message names file, line and key."""


class SettingError(UsageError):
    """Settings of generated data that do not go together, or of which there cannot be so much.

    Attributes:
        keys: of the settings at fault, the likeliest first.
    """

    def __init__(self, message: str, keys: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.keys = keys


class ArchitectureError(UsageError):
    """An architecture is malformed or lies outside the space it is used with."""


class UnreachableLimitError(UsageError):
    """No architecture of the space can meet a limit."""


class TooLargeError(UsageError):
    """A training needs more memory than its graphics card has, however its batches are cut."""


class RunConflictError(UsageError):
    """A run folder already holds a run of another specification."""


class DataError(NasError):
    """A file that was given is missing, damaged or of another kind than is needed."""

    exit_code = 2


class DamagedRunError(NasError):
    """A file in a run folder is missing or does not match its recorded checksum."""


class DivergedError(NasError):
    """A loss became NaN or infinite; the message names step and architecture."""


class EvaluationError(NasError):
    """So many networks could not be evaluated that a search makes no sense."""


class ExecutorError(NasError):
    """What a run is worked on with is not there, or no longer."""
