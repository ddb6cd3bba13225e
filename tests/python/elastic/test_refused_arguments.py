"""Arguments of connect() that one endpoint refuses: the others hear so at once, also those who come a little later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import a2a

pytestmark = pytest.mark.timeout(60)

WRONG: dict[str, Callable[[list[str]], tuple[Any, Any]]] = {
    "negative generation": lambda handles: (handles, -1),
    "generation of 64 bits": lambda handles: (handles, 2**63),
    "generation that is no number": lambda handles: (handles, "7"),
    "handle that is no text": lambda handles: ([handles[0], 5, *handles[1:]], 7),
}


@pytest.mark.parametrize("late", [-0.1, 0.1])
@pytest.mark.parametrize("how", WRONG)
def test_the_others_hear_of_arguments_that_python_refuses(how: str, late: float) -> None:
    endpoints = [a2a.Endpoint() for _ in range(2)]
    handles = [endpoint.handle for endpoint in endpoints]
    errors: list[Exception] = []

    def refuse() -> None:
        time.sleep(max(0.0, -late))
        with pytest.raises(a2a.InvalidArgumentError) as info:
            endpoints[0].connect(*WRONG[how](handles))
        errors.append(info.value)

    thread = threading.Thread(target=refuse)
    thread.start()
    time.sleep(max(0.0, late))
    began = time.monotonic()
    with pytest.raises(a2a.MismatchError):
        endpoints[1].connect(handles, 7, timeout=10)
    seconds = time.monotonic() - began
    thread.join()
    assert len(errors) == 1 and seconds < 3, seconds
