"""libdq by ctypes: dq.h says what each function does."""

import ctypes
import functools
import os
import pathlib

from ctypes import POINTER, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p


class Error(RuntimeError):
    """What libdq says is wrong; status is what the program `dq` would exit with."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Request(ctypes.Structure):
    _fields_ = [("ids", POINTER(c_int32)), ("n", c_int64), ("context", c_int64)]


class Message(ctypes.Structure):
    _fields_ = [("role", c_char_p), ("content", c_char_p)]


class Sampling(ctypes.Structure):
    _fields_ = [("temperature", c_double), ("top_k", c_int64), ("top_p", c_double), ("min_p", c_double),
                ("seed", c_uint64)]


Listener = ctypes.CFUNCTYPE(c_int, c_void_p, c_int32, c_double, POINTER(c_char), c_size_t)

_INT32S, _TEXT = POINTER(POINTER(c_int32)), POINTER(POINTER(c_char))
_FUNCTIONS = {
    "dq_lm_version": (c_char_p, []),
    "dq_lm_error": (c_char_p, []),
    "dq_lm_open": (c_int, [POINTER(c_void_p), c_char_p, POINTER(c_char_p)]),
    "dq_lm_close": (None, [c_void_p]),
    "dq_lm_vocab": (c_int32, [c_void_p]),
    "dq_lm_positions": (c_int32, [c_void_p]),
    "dq_lm_describe": (c_char_p, [c_void_p]),
    "dq_lm_free": (None, [c_void_p]),
    "dq_lm_encode": (c_int, [c_void_p, c_char_p, c_size_t, c_int, _INT32S, POINTER(c_int64)]),
    "dq_lm_decode": (c_int, [c_void_p, POINTER(c_int32), c_int64, c_int, _TEXT, POINTER(c_size_t)]),
    "dq_lm_chat": (c_int, [c_void_p, POINTER(Message), c_int, c_int, _TEXT, POINTER(c_size_t)]),
    "dq_lm_stop_ids": (c_int64, [c_void_p, _INT32S]),
    "dq_lm_prefix_id": (c_int32, [c_void_p]),
    "dq_lm_logits": (c_int, [c_void_p, POINTER(c_int32), c_int64, c_int64, POINTER(ctypes.c_float)]),
    "dq_lm_score": (c_int, [c_void_p, POINTER(Request), c_int64, POINTER(c_double), POINTER(c_int)]),
    "dq_lm_generate": (c_int, [c_void_p, POINTER(c_int32), c_int64, c_int64, POINTER(Sampling), Listener, c_void_p,
                               POINTER(c_int32), POINTER(c_int64)]),
    "dq_lm_quantize": (c_int, [c_char_p, c_char_p, POINTER(c_char_p)]),
}


def _found():
    """libdq that DQ_LIBRARY names, that of the installed package, of a checkout's build, or the system's."""
    named = os.environ.get("DQ_LIBRARY")
    if named:
        return named
    here = pathlib.Path(__file__).resolve().parent
    for own in (here / "libdq.so", here.parents[1] / "build" / "libdq.so"):
        if own.exists():
            return str(own)
    return "libdq.so.0"


@functools.cache
def library():
    name = _found()
    try:
        lib = ctypes.CDLL(name)
    except OSError as e:
        raise ImportError(f"{name}: {e}. Install dq, or name libdq.so in the environment variable DQ_LIBRARY.") from e
    for function, (result, arguments) in _FUNCTIONS.items():
        f = getattr(lib, function)
        f.restype, f.argtypes = result, arguments
    return lib


def check(status):
    if status:
        raise Error(status, library().dq_lm_error().decode(errors="replace"))
