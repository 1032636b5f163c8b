"""Session options shared by the providers that compute on the host processor."""

import onnxruntime as ort

SPIN_MICROSECONDS = 1000
"""How long an idle pool thread spins. It has to outlast the gap between two decode steps (about
0.3 ms of scheduling and sampling), or every step begins with waking a thread: single-stream int4
decode of the demo model on 2 cores ran at 0.95 of the peer of `benchmarks.first` with 50 us, 1.01
to 1.02 with 1000 and 0.99 with 2500. An idle engine parks its threads after this time."""


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
