"""Session options shared by the providers that compute on the host processor."""

import onnxruntime as ort

SPIN_MICROSECONDS = 50
"""How long an idle pool thread spins: long enough for the gaps between nodes, too short to eat the
time that sampling and the fronts need."""


def host_session_options(threads: int) -> ort.SessionOptions:
    """Options with `threads` intra-op threads, one inter-op thread and sequential execution."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_MICROSECONDS))
    return options
