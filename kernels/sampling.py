"""The library's sampler: one call turns a step's logits into tokens.

`SampleRow` and `LogprobsReport` mirror csrc/sampler.h. They hold addresses of arrays; whoever fills
them keeps those arrays alive. Calls release the GIL.
"""

import ctypes
from collections.abc import Sequence
from ctypes import c_double, c_int, c_int64, c_uint64, c_void_p
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ortloom.errors import KernelUnavailable
from ortloom.kernels.library import library_path

SAMPLED, NOT_FINITE, NOTHING_ALLOWED, BAD_ID = 0, 1, 2, 3
"""Values of `SampleRow.status`."""

NO_REPORT, LOGPROBS, LOGITS = 0, 1, 2
"""Values of `LogprobsReport.kind`."""

_FLOAT32 = np.dtype(np.float32)

LARGEST_VOCABULARY = 1 << 19
"""Sums of more masses would not be exact; `Sampler` refuses larger vocabularies."""


class LogprobsReport(ctypes.Structure):
    """Log-probability entries of one position: the own token, the top ones, the extra ones.

    `ids` i64, `values` f64 and `ranks` i64 are addresses of [1 + num_top + num_extra] items,
    `extra` i64 of [num_extra].
    """

    _fields_ = (
        ("kind", c_int64),
        ("num_top", c_int64),
        ("num_extra", c_int64),
        ("extra", c_void_p),
        ("ids", c_void_p),
        ("values", c_void_p),
        ("ranks", c_void_p),
    )


class SampleRow(ctypes.Structure):
    """One row's parameters and result; the fields' meaning is in csrc/sampler.h."""

    _fields_ = (
        ("grammar", c_void_p),
        ("allowed", c_void_p),
        ("forbidden", c_void_p),
        ("num_forbidden", c_int64),
        ("ends", c_void_p),
        ("num_ends", c_int64),
        ("bias_ids", c_void_p),
        ("bias", c_void_p),
        ("num_bias", c_int64),
        ("seen_ids", c_void_p),
        ("num_seen", c_int64),
        ("output_ids", c_void_p),
        ("output_counts", c_void_p),
        ("num_output", c_int64),
        ("repetition_penalty", c_double),
        ("frequency_penalty", c_double),
        ("presence_penalty", c_double),
        ("inverse_temperature", c_double),
        ("log_min_p", c_double),
        ("top_p", c_double),
        ("top_k", c_int64),
        ("seed", c_uint64),
        ("sample_index", c_int64),
        ("position", c_int64),
        ("raw", LogprobsReport),
        ("processed", LogprobsReport),
        ("detail", c_int64),
        ("raw_logprob", c_double),
        ("processed_logprob", c_double),
        ("rank", c_int64),
        ("kept", c_void_p),
        ("kept_room", c_int64),
        ("num_kept", c_int64),
        ("token", c_int64),
        ("status", c_int64),
    )


class Sampler:
    """The library's sampler for one vocabulary, in the tier that is chosen when it is made.

    Args:
        vocab_size: V.
        path: the library; None = the installed one.

    Raises:
        KernelUnavailable: no library, no sampler in it, a tier that cannot be used, or a vocabulary
            above LARGEST_VOCABULARY.
    """

    def __init__(self, vocab_size: int, path: Path | None = None) -> None:
        path = path if path is not None else library_path()
        self._handle = 0
        try:
            library = ctypes.CDLL(str(path))
            create = library.OrtloomSamplerCreate
            self._destroy = library.OrtloomSamplerDestroy
            self._run = library.OrtloomSamplerRun
            self._argmax = library.OrtloomSamplerArgmax
            self._describe = library.OrtloomSamplerDescribe
        except (OSError, AttributeError) as error:
            raise KernelUnavailable(f"{path} has no sampler: {error}") from error
        create.restype = c_void_p
        create.argtypes = (c_int64, c_int64, ctypes.POINTER(ctypes.c_char_p))
        self._destroy.argtypes = (c_void_p,)
        self._destroy.restype = None
        for call in (self._run, self._argmax, self._describe):
            call.restype = c_int
        self._run.argtypes = (c_void_p, c_void_p, c_int64, c_void_p)
        self._argmax.argtypes = (c_void_p, c_void_p, c_int64, c_void_p)
        self._describe.argtypes = (c_void_p, c_void_p, c_int64, ctypes.POINTER(LogprobsReport))
        self._vocab_size = vocab_size
        error_text = ctypes.c_char_p()
        handle = create(vocab_size, ctypes.sizeof(SampleRow), ctypes.byref(error_text))
        if not handle:
            raise KernelUnavailable((error_text.value or b"").decode())
        self._handle = handle

    def __del__(self) -> None:
        if self._handle:
            self._destroy(self._handle)

    def run(self, logits: NDArray[np.float32], rows: Sequence[int]) -> None:
        """Sample each row; tokens and statuses are written into the rows.

        Args:
            logits: [N, V] f32, C-contiguous and writeable; may be changed.
            rows: addresses of N SampleRows (`ctypes.addressof`); 0 leaves a row out.

        Raises:
            ValueError: arrays of a wrong shape or kind.
            MemoryError: the library's buffers cannot be had.
        """
        address = self._address(logits, len(rows), writes=True)
        addresses = (c_void_p * len(rows))(*rows)
        if self._run(self._handle, address, len(rows), addresses):
            raise MemoryError("the sampler's buffers")

    def argmax(self, logits: NDArray[np.float32]) -> list[int]:
        """The lowest id of the largest value of each row, -1 for a row that is not finite.

        Args:
            logits: [N, V] f32, C-contiguous; not changed.

        Raises:
            ValueError: an array of a wrong shape or kind.
            MemoryError: the library's buffers cannot be had.
        """
        count = len(logits)
        tokens = (c_int64 * count)()
        if self._argmax(self._handle, self._address(logits, count), count, tokens):
            raise MemoryError("the sampler's buffers")
        return tokens[:]

    def describe(self, row: NDArray[np.float32], own: int, report: LogprobsReport) -> None:
        """Fill `report` with raw entries of token `own`.

        Args:
            row: [1, V] f32, C-contiguous, without NaN; not changed.
            own: the position's own token.
            report: with its arrays in place.

        Raises:
            ValueError: an array of a wrong shape or kind.
            IndexError: an id outside the vocabulary.
            MemoryError: the library's buffers cannot be had.
        """
        address = self._address(row, 1)
        status = self._describe(self._handle, address, own, ctypes.byref(report))
        if status == BAD_ID:
            raise IndexError("a token id is outside the vocabulary")
        if status:
            raise MemoryError("the sampler's buffers")

    def _address(self, logits: NDArray[np.float32], rows: int, writes: bool = False) -> int:
        flags = logits.flags
        good = logits.shape == (rows, self._vocab_size) and logits.dtype == _FLOAT32
        if not good or not flags.c_contiguous:
            raise ValueError(
                f"logits must be contiguous float32 [{rows}, {self._vocab_size}], "
                f"got {logits.dtype} {logits.shape}"
            )
        if flags.writeable and rows:
            # Takes a fifth of the time of the array interface.
            return ctypes.addressof(ctypes.c_char.from_buffer(logits.data))
        if writes and rows:
            raise ValueError("logits must be writeable")
        address: int = logits.__array_interface__["data"][0]
        return address
