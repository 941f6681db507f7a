"""Where the events of a run can go besides the screen: TensorBoard and MLflow."""

from nas.listeners.base import Listener, Logger, Outcome
from nas.listeners.targets import Target, read_target

__all__ = ["Listener", "Logger", "Outcome", "Target", "read_target"]
