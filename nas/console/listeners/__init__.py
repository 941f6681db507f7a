"""Where the events of a run can go besides the screen: TensorBoard and MLflow."""

from nas.console.listeners.base import Listener, Logger, Outcome
from nas.console.listeners.targets import Target, read_target

__all__ = ["Listener", "Logger", "Outcome", "Target", "read_target"]
