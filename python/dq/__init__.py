"""dq from Python: low-bit Differential Transformers, on libdq.

    import dq
    m = dq.load("model.gguf", logit_bits=6, kv_bits="4:4")
    ids = m.encode("The capital of France is", special="before")
    m.logits(ids)                        # NumPy [n, vocabulary], float32
    m.generate("The capital of France is", max_new=8)
    m.chat("What is attention?")         # with the model's chat template
    m.score([(context_ids, continuation_ids), ...])
    dq.quantize("model/", "small.h5", size=3.5, calib="train.jsonl")

Settings are the options of the command line with underscores: dq.load takes those of `dq logits`, dq.quantize those of
`dq quantize`. The numbers are those of the commands, bit for bit. A Model may be used by one thread at a time.

SPDX-License-Identifier: MIT
"""

import ctypes
import json
import operator
import os
import signal
import threading
import warnings

import numpy as np

from ._native import Error, Listener, Message, Request, Sampling, check, library

__all__ = ["Error", "Model", "load", "quantize", "version"]

_MOST = (1 << 63) - 1


def version():
    return library().dq_lm_version().decode()


def _bytes(text):
    if b"\0" in text:
        raise ValueError(f"a zero byte in {text!r:.200}")
    return text


def _path(path):
    return _bytes(os.fsencode(path))


def _whole(name, value, least, most):
    """What ctypes would cut to its width, unsaid."""
    value = operator.index(value)
    if not least <= value <= most:
        raise ValueError(f"{name}: expected {least} to {most}, found {value}")
    return value


def _settings(options):
    """{"kv_bits": "4:4", "force": True} as the list that libdq takes; None is left out."""
    def text(value):
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value)

    words = [_bytes(f"{name}={text(value)}".encode()) for name, value in options.items() if value is not None]
    return (ctypes.c_char_p * (len(words) + 1))(*words, None)


def load(path, **settings):
    """Opens a folder with config.json, a .gguf file or a container."""
    return Model(path, **settings)


def quantize(model, out, **settings):
    """Writes the container `out` of a model: size=4.5, calib="train.jsonl", force=True, ..."""
    check(library().dq_lm_quantize(_path(model), _path(out), _settings(settings)))


def _ids(ids):
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"expected one sequence of whole numbers, found {array.dtype} of shape {array.shape}")
    if array.size and (array.min() < 0 or array.max() >= 1 << 31):
        raise ValueError(f"ids from {array.min()} to {array.max()} (expected 0 to 2147483647)")
    return np.ascontiguousarray(array, dtype=np.int32)


def _pointer(array, kind=ctypes.c_int32):
    return array.ctypes.data_as(ctypes.POINTER(kind))


def _sampling(temperature, **choice):
    given = {name: value for name, value in choice.items() if value is not None}
    if temperature == 0 and given:
        raise ValueError(f"{', '.join(given)}: nothing is drawn. Add temperature=1")
    if given.get("top_p") == 0:
        raise ValueError("top_p: expected more than 0 and at most 1, found 0")
    return Sampling(temperature, _whole("top_k", given.get("top_k", 0), 0, _MOST), given.get("top_p", 1.0),
                    given.get("min_p", 0.0), _whole("seed", given.get("seed", 1), 0, (1 << 64) - 1))


class _Interrupts:
    """Ctrl-C while libdq runs: remembered, as an exception cannot cross C, and handed on at the end of `with`."""

    def __enter__(self):
        self.came = False
        main = threading.current_thread() is threading.main_thread()
        self._handler = signal.getsignal(signal.SIGINT) if main else None
        if callable(self._handler):
            signal.signal(signal.SIGINT, self._remember)
        return self

    def _remember(self, *args):
        self.came, self._args = True, args

    def __exit__(self, *_):
        if callable(self._handler):
            signal.signal(signal.SIGINT, self._handler)
            if self.came:
                self._handler(*self._args)


class Model:
    """An open model. Use dq.load; `with` closes it."""

    def __init__(self, path, **settings):
        self._m = ctypes.c_void_p()
        check(library().dq_lm_open(ctypes.byref(self._m), _path(path), _settings(settings)))

    def close(self):
        m, self._m = getattr(self, "_m", None), None
        if m:
            library().dq_lm_close(m)

    __del__ = close

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def _open(self):
        if not self._m:
            raise ValueError("the model is closed")
        return self._m

    @property
    def vocab(self):
        """Logits of a position."""
        return library().dq_lm_vocab(self._open)

    @property
    def positions(self):
        """Tokens that a sequence may have; 0: not limited."""
        return library().dq_lm_positions(self._open)

    @property
    def about(self):
        """Architecture, parameters, bits_per_weight, settings, warnings."""
        return json.loads(library().dq_lm_describe(self._open))

    @property
    def stop_ids(self):
        """Ids that end a text: EOS and its like."""
        ids = ctypes.POINTER(ctypes.c_int32)()
        n = library().dq_lm_stop_ids(self._open, ctypes.byref(ids))
        return ids[:n]

    @property
    def prefix_id(self):
        """What stands before an empty context: BOS, else EOS; None: the tokenizer names neither."""
        id = library().dq_lm_prefix_id(self._open)
        return None if id < 0 else id

    def encode(self, text, special=True):
        """Token ids; special: with what the tokenizer puts around a text (BOS, EOS), but where it spells BOS itself; "before": with
        what stands before it alone, for a text that is to go on."""
        if special not in (True, False, "before"):
            raise ValueError(f"special: expected True, False or 'before', found {special!r}")
        special = 2 if special == "before" else int(special)
        text, ids, n = text.encode(), ctypes.POINTER(ctypes.c_int32)(), ctypes.c_int64()
        check(library().dq_lm_encode(self._open, text, len(text), special, ctypes.byref(ids), ctypes.byref(n)))
        try:
            return ids[:n.value]
        finally:
            library().dq_lm_free(ids)

    def _text(self, call, *args):
        text, n = ctypes.POINTER(ctypes.c_char)(), ctypes.c_size_t()
        check(call(self._open, *args, ctypes.byref(text), ctypes.byref(n)))
        try:
            return ctypes.string_at(text, n.value).decode()
        finally:
            library().dq_lm_free(text)

    def decode(self, ids, special=False):
        """Text of ids; special: with special tokens."""
        ids = _ids(ids)
        return self._text(library().dq_lm_decode, _pointer(ids), len(ids), special)

    def chat_text(self, messages, answer=True):
        """What the chat template makes of [{"role": ..., "content": ...}]; answer: with the beginning of an answer."""
        for m in messages:
            if set(m) != {"role", "content"} or not all(isinstance(v, str) and "\0" not in v for v in m.values()):
                raise ValueError(f"expected {{'role': text, 'content': text}}, found {m!r:.200}")
        list_ = (Message * len(messages))(*[(m["role"].encode(), m["content"].encode()) for m in messages])
        known = len(self.about["warnings"])
        text = self._text(library().dq_lm_chat, list_, len(messages), answer)
        for warning in self.about["warnings"][known:]:  # a message that the template leaves out
            warnings.warn(warning, stacklevel=2)
        return text

    def logits(self, ids, context=0):
        """float32 [n, vocab], row i after ids[i]. context > 0: the first so many ids are read at once, and after them the cache is
        cut as the settings say."""
        ids = _ids(ids)
        context = _whole("context", context, 0, len(ids))
        out = np.empty((len(ids), self.vocab), dtype=np.float32)
        check(library().dq_lm_logits(self._open, _pointer(ids), len(ids), context, _pointer(out, ctypes.c_float)))
        return out

    def score(self, pairs):
        """[(logp, greedy)] of (context ids, continuation ids): nats, and whether each id was the most likely one. Pairs of one
        context that follow each other compute it once."""
        n = len(pairs)
        whole = [_ids(list(context) + list(rest)) for context, rest in pairs]
        requests = (Request * max(n, 1))(*[(_pointer(ids), len(ids), len(context))
                                           for ids, (context, _) in zip(whole, pairs)])
        logp, greedy = (ctypes.c_double * max(n, 1))(), (ctypes.c_int * max(n, 1))()
        check(library().dq_lm_score(self._open, requests, n, logp, greedy))
        return [(logp[i], bool(greedy[i])) for i in range(n)]

    def generate(self, prompt, max_new=256, temperature=0.0, top_k=None, top_p=None, min_p=None, seed=None, on_token=None):
        """The text after a prompt, which is text or ids. Greedy unless temperature is more than 0; top_k, top_p, min_p and seed
        (default 1) need one. on_token(id, logp, text) is told of each token as it comes, with id -1 of text that was waiting at
        the end; True ends the text. Ctrl-C ends it too."""
        return self.decode(self.generate_ids(prompt, max_new, temperature, top_k, top_p, min_p, seed, on_token))

    def generate_ids(self, prompt, max_new=256, temperature=0.0, top_k=None, top_p=None, min_p=None, seed=None,
                     on_token=None):
        """The same as ids, without the one that ended the text."""
        ids = _ids(self.encode(prompt, "before") if isinstance(prompt, str) else prompt)
        how = _sampling(temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
        max_new = _whole("max_new", max_new, 1, _MOST)
        out, n = np.empty(min(max_new, self.positions or max_new), dtype=np.int32), ctypes.c_int64()
        failed = []
        with _Interrupts() as interrupts:

            def tell(_, id, logp, piece, length):
                try:
                    return interrupts.came or bool(on_token and
                                                   on_token(id, logp, ctypes.string_at(piece, length).decode()))
                except BaseException as e:  # not across C: raised below
                    failed.append(e)
                    return True

            status = library().dq_lm_generate(self._open, _pointer(ids), len(ids), len(out), ctypes.byref(how),
                                              Listener(tell), None, _pointer(out), ctypes.byref(n))
        if failed:
            raise failed[0]
        check(status)
        return out[:n.value].tolist()

    def chat(self, messages, **how):
        """The answer to a text, or to a list of messages, by the model's chat template; how: as for generate."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self.generate(self.encode(self.chat_text(messages), special=False), **how)
