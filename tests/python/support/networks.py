"""What tests of several networks expect of the programs in mpi_ranks.py."""

from __future__ import annotations

import os

import pytest
from mpi import INSTALLED, LIBRARIES
from mpi_ranks import SIZES
from sample import with_full

# Bytes that one call of MPI is not given; and those that do not fit an int, which take more memory than all machines
# have.
LARGE = pytest.mark.skipif(os.environ.get("A2A_TEST_LARGE") != "1", reason="large: set A2A_TEST_LARGE=1")
HUGE = [pytest.param((1 << 30) + 12345, marks=pytest.mark.full), pytest.param((1 << 31) + 4097, marks=LARGE)]
# The MPIs for a test that sees no difference between the two ABIs of MPICH.
ONE_ABI = [*INSTALLED, *with_full(mpi for mpi in LIBRARIES if mpi not in INSTALLED)]


def assert_disagreements(lines: list[str]) -> None:
    """What four ranks have to have said there."""
    said = {}
    for line in lines:
        call, size, rank, text = line.split(" ", 3)
        said[call, size, int(rank)] = text
    assert len(said) == 4 * len(SIZES) * 4
    for size, elems in SIZES.items():
        text = f"rank 3 sends {elems} elements to rank 0, which expects {elems + 1}"
        for rank in (0, 3):
            assert (
                said["count", size, rank].startswith("MismatchError: alltoallv #") and text in said["count", size, rank]
            )
        assert said["count", size, 1] == said["count", size, 2] == "no error"
        for rank in range(4):
            wrong_dtype, refused, other = (said[call, size, rank] for call in ("dtype", "refused", "operation"))
            assert wrong_dtype.startswith("MismatchError: alltoallv #") and "float32" in wrong_dtype, wrong_dtype
            assert other.startswith("MismatchError: ") and "allgather" in other and "alltoall" in other, other
            if rank == 0:
                assert refused.startswith("InvalidArgumentError: "), refused
            else:
                assert refused.startswith("MismatchError: ") and "rank 0 does not take part" in refused, refused
                assert "-1 is negative" in refused, refused
