"""What onnxruntime raises for a graph that it cannot read or run."""

from __future__ import annotations

import onnxruntime.capi.onnxruntime_pybind11_state as runtime

FAILURES = (
    runtime.Fail,
    runtime.InvalidArgument,
    runtime.InvalidGraph,
    runtime.InvalidProtobuf,
    runtime.NoModel,
    runtime.NoSuchFile,
    runtime.NotImplemented,
    runtime.RuntimeException,
)
