"""Where the events of a run can go besides the screen: TensorBoard and MLflow."""

from nas.cli.listeners.base import Listener, Logger, Outcome
from nas.cli.listeners.targets import Target, read_target

__all__ = ["Listener", "Logger", "Outcome", "Target", "read_target"]
