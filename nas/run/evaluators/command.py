"""An evaluator that is a command line: one line of JSON in, one out.

For each network the command is started anew. It reads the network as one line of JSON from its
standard input, such as ``{"embed_dim": 192, "ratio": [2, 4]}``, and writes one line to its
standard output: a number, the quality, or an object with ``quality`` and, where they apply,
``std``, ``costs`` and ``failure`` (see `nas.run.evaluators.Answer`).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from nas.run.evaluators import Answer
from search_spaces.errors import UsageError
from search_spaces.genes import Network
from search_spaces.json_text import parse_json


class CommandEvaluator:
    """Starts a command for each network.

    Args:
        command: program and arguments; no shell is asked.
        timeout_s: seconds after which it is killed and the network counts as failed; None waits.

    Raises:
        UsageError: for an empty command or a timeout that is not positive.
    """

    def __init__(self, command: Sequence[str], timeout_s: float | None = None) -> None:
        if isinstance(command, str) or not command:
            raise UsageError(
                f"an evaluator's command is a list of program and arguments; given {command!r}"
            )
        if timeout_s is not None and not timeout_s > 0:
            raise UsageError(f"an evaluator's timeout is a positive time; given {timeout_s} s")
        self._command, self._timeout_s = list(command), timeout_s

    def evaluate(self, networks: Sequence[Network]) -> list[Answer | float | Mapping[str, Any]]:
        """See `nas.run.evaluators.Evaluator.evaluate`."""
        return [self._ask(network) for network in networks]

    def _ask(self, network: Network) -> Answer | float | Mapping[str, Any]:
        try:
            done = subprocess.run(
                self._command,
                input=json.dumps(dict(network)) + "\n",
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=self._timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Answer.failed(f"the command took longer than {self._timeout_s:g} s")
        except TimeoutError:  # of whoever limits the time; it is an OSError, too
            raise
        except OSError as error:
            return Answer.failed(f"{self._command[0]} cannot be started: {error.strerror}")
        if done.returncode:
            said = done.stderr.strip().split("\n")[-1]
            return Answer.failed(f"the command ended with exit code {done.returncode}: {said}")
        lines = done.stdout.split("\n")
        try:
            answer = parse_json(lines[0])
        except ValueError:
            return Answer.failed(f"the command did not write a line of JSON but {lines[0][:60]!r}")
        return answer if isinstance(answer, Mapping) else Answer(answer)
