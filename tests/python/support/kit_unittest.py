"""Tests of unittest on ranks, for tests/python/kit/test_case.py."""

import os
import time
import unittest

import numpy as np

from a2a import testing


class Three(testing.RanksTestCase):
    ranks = 3

    @classmethod
    def setUpClass(cls) -> None:
        cls.pid = os.getpid()

    def setUp(self) -> None:
        self.mine = self.comm.rank

    def test_passes(self) -> None:
        x = np.ones(1)
        self.comm.allreduce(x)
        self.assertEqual((x[0], self.pid), (3, os.getpid()))

    def test_fails_on_one(self) -> None:
        self.assertNotEqual(self.mine, 1)
        self.comm.barrier()

    def test_dies(self) -> None:
        if self.mine == 1:
            os._exit(4)
        self.comm.barrier()

    def test_skips(self) -> None:
        self.skipTest("on all")

    @unittest.skip("by its decorator")
    def test_skipped(self) -> None:
        pass

    @unittest.expectedFailure
    def test_is_expected_to_fail(self) -> None:
        self.fail("as expected")

    def test_fails_in_a_part(self) -> None:
        for number in range(2):
            with self.subTest(number=number):
                self.assertEqual(number, 0)

    def test_leaves_work(self) -> None:
        self.comm.allreduce(np.ones(1), async_op=True)


class Two(testing.RanksTestCase):
    timeout = 1

    def test_hangs(self) -> None:
        if self.comm.rank:
            time.sleep(99)
        self.comm.barrier()


class OnGloo(testing.RanksTestCase):
    torch = "gloo"

    def test_reduces(self) -> None:
        import torch
        import torch.distributed as dist

        x = torch.ones(1)
        dist.all_reduce(x)
        self.assertEqual(x.item(), 2)


class TooMany(testing.RanksTestCase):
    ranks = 1_000_000

    def test_runs_nowhere(self) -> None:
        pass


if __name__ == "__main__":
    unittest.main()
