"""The division of one rank's tensors in an exchange along axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Division:
    """The parts that one rank sends and receives. Sizes and shapes may be symbolic."""

    split_axis: int
    concat_axis: int
    to: list[int]
    """Entries of ``split_axis`` for each rank."""
    from_: list[int]
    """Entries of ``concat_axis`` from each rank."""
    shape: list[int]
    """The shape of the received tensor."""

    @staticmethod
    def of(
        shape: Sequence[int],
        split_axis: int,
        concat_axis: int,
        split_sizes: Sequence[int],
        concat_sizes: Sequence[int],
        rank: int,
        ranks: int,
    ) -> Division:
        """Divide a tensor of that shape, which has these axes, counted from 0. Sizes are one for each rank, or empty:
        without split sizes the parts are equal, without concat sizes every rank sends as much as this one sends to
        itself. Nothing is checked: see misfit()."""
        to = list(split_sizes) or [shape[split_axis] // ranks] * ranks
        result = list(shape)
        result[split_axis] = to[rank]
        from_ = list(concat_sizes) or [result[concat_axis]] * ranks
        result[concat_axis] = sum(from_)
        return Division(split_axis, concat_axis, to, from_, result)

    def misfit(self, shape: Sequence[int], name: str, rank: int, sizes_given: bool) -> str:
        """Return why a tensor of that shape, called ``name`` in messages, cannot be divided like this; "" when it
        can."""
        entries, axis = shape[self.split_axis], self.split_axis
        if sum(self.to) != entries:
            text = f"{name} has {entries} entries along axis {axis}"
            if sizes_given:
                return f"split_sizes {self.to} sums to {sum(self.to)}, but {text}"
            return f"{text}, which {len(self.to)} ranks cannot share equally; pass split_sizes"
        own = self.to[rank] if axis == self.concat_axis else shape[self.concat_axis]
        if self.from_[rank] != own:
            return (
                f"concat_sizes[{rank}] is {self.from_[rank]}, but of {name} this rank sends itself {own} entries along "
                f"axis {self.concat_axis}"
            )
        return ""

    def back(self, shape: Sequence[int]) -> Division:
        """Return the inverse division, to a tensor of that shape: the way of its gradient."""
        return Division(self.concat_axis, self.split_axis, self.from_, self.to, list(shape))
