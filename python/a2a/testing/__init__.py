"""What tests of distributed programs need.

``oracle`` computes every operation over all ranks' inputs at once, without communication. Its names are here, too:

    expected = testing.alltoallv(sends, send_counts, recvs)[comm.rank]
    assert testing.first_difference(recv, expected) is None

``checks`` compares what ranks have, ``recordings`` keeps the inputs of what fails, ``faults`` strikes ranks on purpose.
With pytest, ``@pytest.mark.ranks(4)`` runs a test on each of four ranks (docs/guide/testing.md); with
unittest a class derives from ``RanksTestCase``.
"""

from typing import TYPE_CHECKING, Any

from . import oracle
from .checks import assert_bitwise, assert_same_on_all, process_group, run_both
from .faults import Faults, point
from .oracle import *  # noqa: F403
from .recordings import Recording, record, replay

if TYPE_CHECKING:
    from .case import RanksTestCase

__all__ = [
    "Faults",
    "RanksTestCase",
    "Recording",
    "assert_bitwise",
    "assert_same_on_all",
    "point",
    "process_group",
    "record",
    "replay",
    "run_both",
]
__all__ += oracle.__all__


def __getattr__(name: str) -> Any:
    if name == "RanksTestCase":  # unittest is imported where it is used
        from .case import RanksTestCase

        return RanksTestCase
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
