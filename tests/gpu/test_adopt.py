"""Operations over an ncclComm_t that the program has made: by hand, by Torch and by CuPy."""

from __future__ import annotations

from pathlib import Path

import adopt_ranks
import pytest
from rank_pool import Pool

from a2a import frameworks

pytestmark = pytest.mark.timeout(150)


@pytest.mark.parametrize("whose", adopt_ranks.MADE_BY)
def test_a_communicator_of_the_programs_own(ranks: Pool, double: bool, whose: str, tmp_path: Path) -> None:
    if whose != "hand" and (double or whose not in frameworks.installed()):
        pytest.skip(f"{whose} is not installed, or knows no doubles")
    missing = ranks.run(adopt_ranks.adopt, whose, str(tmp_path / "store"))
    if any(missing):
        pytest.skip(missing[0])
