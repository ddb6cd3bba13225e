"""Environment variables: those that the library knows, and how numbers in them are read."""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Mapping

from ._core import InvalidArgumentError

KNOWN = frozenset(
    {
        "A2A_AGGREGATE_MAX",
        "A2A_ASCENDCL_LIBRARY",
        "A2A_BOOTSTRAP",
        "A2A_CHECK",
        "A2A_CUDA_LIBRARY",
        "A2A_DUMP",
        "A2A_ENDED",
        "A2A_FAULT",
        "A2A_HCCL_LIBRARY",
        "A2A_HCOMM_LIBRARY",
        "A2A_HOSTS",
        "A2A_JOB",
        "A2A_JOINED",
        "A2A_LOCAL_RANK",
        "A2A_LOG",
        "A2A_METRICS",
        "A2A_MPI_LIBRARY",
        "A2A_NCCL_LIBRARY",
        "A2A_NETWORK",
        "A2A_PORT_OFFSET",
        "A2A_PROGRESS_THREAD",
        "A2A_RANK",
        "A2A_RECORD",
        "A2A_RESTART",
        "A2A_RESTARTS",
        "A2A_SECRET",
        "A2A_SECRET_FILE",
        "A2A_SHM_CMA",
        "A2A_SHM_CMA_MIN",
        "A2A_SHM_DIRECT_MIN",
        "A2A_SHM_SEGMENT",
        "A2A_SHM_SPREAD",
        "A2A_SHM_STREAM_MIN",
        "A2A_SIZE",
        "A2A_TEST_DOUBLES",
        "A2A_TORCH_GLOO",
        "A2A_TRACE",
        "A2A_TRACEBACK",
        "A2A_TRUST_STORE",
        "A2A_UCX_LIBRARY",
    }
)
# The prefixes of programs that test or time the library.
_OTHERS = ("A2A_TEST_", "A2A_FAKE_", "A2A_FAULTS_", "A2A_BENCH_")

_INT_MAX = 2**31 - 1
_warned = False


def warn_of_unknown() -> None:
    """Warn, once in a process, of variables that look misspelled."""
    global _warned
    if _warned:
        return
    _warned = True
    unknown = sorted(name for name in os.environ if name.startswith("A2A_") and name not in KNOWN)
    advice = [
        f"{name} (did you mean {difflib.get_close_matches(name, sorted(KNOWN), n=1, cutoff=0)[0]}?)"
        for name in unknown
        if not name.startswith(_OTHERS)
    ]
    if advice:
        text = f"the environment has variables that a2a does not know: {', '.join(advice)}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def is_set(env: Mapping[str, str], name: str) -> bool:
    """Whether a variable is set. A blank variable of this package counts as unset, one of another program does not."""
    return name in env and not (name.startswith("A2A_") and not env[name].strip())


def integer(env: Mapping[str, str], name: str, default: int, least: int = -_INT_MAX, most: int = _INT_MAX) -> int:
    if not is_set(env, name):
        return default
    text = env[name]
    if not re.fullmatch(r"\s*[+-]?[0-9]+\s*", text, re.ASCII):
        raise InvalidArgumentError(f"{name}={text!r} in the environment is not an integer")
    if len(text) > 4000 or not least <= int(text) <= most:
        raise InvalidArgumentError(f"{name}={text[:40]} in the environment is not between {least} and {most}")
    return int(text)


def switch(env: Mapping[str, str], name: str) -> bool:
    """Return whether a switch is on. It is off unless it is set."""
    word = env.get(name, "").strip()
    if word.lower() not in (*_ON, *_OFF):
        raise InvalidArgumentError(f"{name}={word} in the environment is none of {', '.join((*_ON, *_OFF[1:]))}")
    return word.lower() in _ON


_ON, _OFF = ("1", "on", "true", "yes"), ("", "0", "off", "false", "no")
