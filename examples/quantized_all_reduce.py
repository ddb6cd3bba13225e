"""The same gradient added up over all ranks as float32 and as int8: errors, and bytes that were sent.

a2a run -n 4 examples/quantized_all_reduce.py
"""

from __future__ import annotations

import numpy as np

import a2a
from a2a.quantized import wire_bytes

ELEMS, BLOCK = 1 << 20, 128


def report(
    comm: a2a.Communicator, name: str, result: np.ndarray, exact: np.ndarray, bound: np.ndarray, share: float
) -> None:
    error = np.abs(result.astype(np.float64) - exact)
    relative = np.linalg.norm(error) / np.linalg.norm(exact)
    assert (error <= bound).all()
    print(
        f"rank {comm.rank}: {name}: {100 * share:.1f} % of the bytes of float32, relative error {relative:.4f} "
        f"({-20 * np.log10(relative):.1f} dB), worst error {(error / bound).max():.2f} of its bound"
    )


def main() -> None:
    with a2a.init() as comm:
        ranks = comm.size
        xs = [np.random.default_rng(rank).standard_normal(ELEMS).astype(np.float32) for rank in range(ranks)]
        x, exact = xs[comm.rank], np.sum(xs, axis=0, dtype=np.float64)

        # One scale that all ranks know: here from the largest number that any of them has.
        scale = max(float(np.abs(each).max()) for each in xs) / 127
        q = np.rint(x / scale).astype(np.int8)
        common = a2a.quantized_all_reduce(comm, q, scale)
        blocks = a2a.block_quantized_all_reduce(comm, x, block=BLOCK)

        half = np.abs(exact) * 2.0**-11 + ranks * scale * 2.0**-11 + 1e-5
        share = wire_bytes(ELEMS, ranks, send_scales=False, gather_item=2).ratio
        report(comm, "int8, one scale, float16 back", common, exact, ranks * scale / 2 + half, share)
        scales = [np.abs(each.reshape(-1, BLOCK)).max(axis=1) / 127 for each in xs]
        step = sum(scales) + (np.abs(exact.reshape(-1, BLOCK)).max(axis=1) + sum(scales) / 2) / 127
        share = wire_bytes(ELEMS, ranks, send_scales=True, block=BLOCK).ratio
        report(comm, "int8 in blocks there and back", blocks, exact, np.repeat(step / 2, BLOCK) * 1.0001, share)


if __name__ == "__main__":
    main()
