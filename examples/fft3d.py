"""Fourier transforms of a cube that the ranks share in pencils: a2a run -n 4 examples/fft3d.py

The ranks form a grid of rows and columns. Each has a pencil of the cube, whole along one axis, along which it
transforms; between two transforms an exchange along axes turns the pencils. The exchanges are planned once, with parts
of any size, and run from where the elements lie. On the way back the same plans run, transposed. The program diffuses
heat, which in Fourier space is a multiplication, for many steps, and compares with NumPy, which has the whole cube.
"""

import numpy as np

import a2a

SHAPE, STEPS, RATE = (21, 18, 25), 50, 1e-3


def shares(entries: int, ranks: int) -> list[int]:
    """As equal as can be."""
    return [entries // ranks + (rank < entries % ranks) for rank in range(ranks)]


def own(entries: int, comm: a2a.Communicator) -> slice:
    """This rank's share."""
    sizes = shares(entries, comm.size)
    start = sum(sizes[: comm.rank])
    return slice(start, start + sizes[comm.rank])


class Pencils:
    """The cube along z, along y and along x."""

    def __init__(self, comm: a2a.Communicator) -> None:
        columns = next(n for n in range(int(comm.size**0.5), 0, -1) if comm.size % n == 0)
        row, column = comm.split(comm.rank // columns), comm.split(comm.rank % columns)
        (x, y, z), whole = SHAPE, slice(None)
        self.place_of_z = own(x, column), own(y, row), whole
        self.place_of_y = own(x, column), whole, own(z, row)
        self.place_of_x = whole, own(y, column), own(z, row)
        cube = np.zeros(SHAPE, complex)
        self.z, self.y, self.x = (cube[at].copy() for at in (self.place_of_z, self.place_of_y, self.place_of_x))
        self.turns = [
            row.plan_alltoallv(self.z, shares(z, row.size), self.y, shares(y, row.size), split_axis=2, concat_axis=1),
            column.plan_alltoallv(
                self.y, shares(y, column.size), self.x, shares(x, column.size), split_axis=1, concat_axis=0
            ),
        ]
        self.back = [turn.transpose() for turn in self.turns]
        self.grid = f"{column.size} x {row.size}"

    def transform(self) -> None:
        """From ``z`` to ``x``."""
        self.turns[0].run(np.fft.fft(self.z, axis=2), self.y)
        self.turns[1].run(np.fft.fft(self.y, axis=1), self.x)
        self.x = np.fft.fft(self.x, axis=0)

    def invert(self) -> None:
        """From ``x`` to ``z``."""
        self.back[1].run(np.fft.ifft(self.x, axis=0), self.y)
        self.back[0].run(np.fft.ifft(self.y, axis=1), self.z)
        self.z = np.fft.ifft(self.z, axis=2)


with a2a.init() as comm:
    heat = np.random.default_rng(0).standard_normal(SHAPE)
    waves = np.meshgrid(*(np.fft.fftfreq(n, 1 / n) for n in SHAPE), indexing="ij", sparse=True)
    decay = np.exp(-RATE * sum(wave**2 for wave in waves))

    pencils = Pencils(comm)
    pencils.z[...] = heat[pencils.place_of_z]
    for _ in range(STEPS):
        pencils.transform()
        pencils.x *= decay[pencils.place_of_x]
        pencils.invert()

    expected = np.fft.ifftn(np.fft.fftn(heat) * decay**STEPS)
    worst = np.array([np.abs(pencils.z - expected[pencils.place_of_z]).max(initial=0)])
    comm.allreduce(worst, op="max")
    assert worst[0] < 1e-12, f"rank {comm.rank}: differs by {worst[0]:.1e}"
    if comm.rank == 0:
        print(
            f"{pencils.grid} ranks: {STEPS} steps of a cube {SHAPE} as with numpy.fft, largest difference "
            f"{worst[0]:.1e}"
        )
