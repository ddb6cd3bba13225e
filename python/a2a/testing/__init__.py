"""What tests of distributed programs need.

``oracle`` computes every operation over all ranks' inputs at once, without communication. Its names are here, too:

    expected = testing.alltoallv(sends, send_counts, recvs)[comm.rank]
    assert testing.first_difference(recv, expected) is None

With pytest, ``@pytest.mark.ranks(4)`` runs a test on each of four ranks (docs/guide/testing.md).
"""

from . import oracle
from .faults import Faults, point
from .oracle import *  # noqa: F403

__all__ = ["Faults", "point"]
__all__ += oracle.__all__
