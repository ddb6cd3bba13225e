# Shardings: which part of a tensor each rank has.


class Shard:
    """A placement: the ranks along an axis of a mesh divide dimension ``dim`` of the tensor; a negative one counts from
    the last. Parts are those of torch.chunk: of n entries among m ranks ceil(n / m) each, the last ones fewer or
    none."""

    __slots__ = ("dim",)

    def __init__(self, dim):
        self.dim = parse_int(dim, "dim")

    def __repr__(self):
        return f"Shard({self.dim})"

    def __eq__(self, other):
        return isinstance(other, Shard) and self.dim == other.dim

    def __hash__(self):
        return hash((Shard, self.dim))


class Replicate:
    """A placement: all ranks along an axis of a mesh have the same part."""

    __slots__ = ()

    def __repr__(self):
        return "Replicate()"

    def __eq__(self, other):
        return isinstance(other, Replicate)

    def __hash__(self):
        return hash(Replicate)


class Partial:
    """A placement, of a source: each rank along an axis of a mesh has a term of the elements. ``op`` folds them, as in
    ``allreduce``, in the order of the ranks."""

    __slots__ = ("op",)

    def __init__(self, op="sum"):
        if not isinstance(op, str) or op not in folds or op == "premul_sum":
            raise InvalidArgumentError(f"op is {shown(op)}; pass one of "
                                       f"{', '.join([repr(name) for name in folds if name != 'premul_sum'])}")
        self.op = op

    def __repr__(self):
        return f"Partial({self.op!r})"

    def __eq__(self, other):
        return isinstance(other, Partial) and self.op == other.op

    def __hash__(self):
        return hash((Partial, self.op))


cdef class Sharding:
    """Which part of a tensor each rank of a mesh has. ``mesh`` is an array of ranks of any number of dimensions, or
    nested lists; ``placements`` has a Shard, Replicate or Partial for each of its axes. Several axes may divide one
    dimension, in their order. A mesh that names a rank twice, and placements that do not fit it, are refused where the
    sharding is used, so that the peers are told."""

    cdef ShardingPtr ptr
    cdef str problem    # why it is refused where it is used; None: it is not
    cdef readonly object mesh
    cdef readonly tuple placements

    def __cinit__(self, mesh, placements):
        cdef Numbers shape
        cdef vector[int] ranks
        cdef vector[CppPlacement] kinds
        try:
            array = np.asarray(mesh)
        except Exception as error:
            raise InvalidArgumentError(f"mesh is no array of ranks: {first_line(error)}") from error
        if array.dtype.kind not in "iu":
            raise InvalidArgumentError(f"mesh is {shown(mesh)}; pass an array of ranks, or nested lists")
        self.mesh = array.astype(np.int64)
        self.mesh.flags.writeable = False
        for entries in self.mesh.shape:
            shape.push_back(entries)
        for rank in self.mesh.ravel().tolist():
            ranks.push_back(parse_int(rank, "a rank of mesh"))
        if isinstance(placements, (Shard, Replicate, Partial)):
            placements = (placements,)
        try:
            self.placements = tuple(placements)
        except TypeError:
            raise InvalidArgumentError(f"placements is {shown(placements)}; pass a list of placements") from None
        for placement in self.placements:
            if isinstance(placement, Shard):
                add_placement(kinds, 1, placement.dim, Fold.none)
            elif isinstance(placement, Replicate):
                add_placement(kinds, 0, 0, Fold.none)
            elif isinstance(placement, Partial):
                add_placement(kinds, 2, 0, folds[placement.op])
            else:
                raise InvalidArgumentError(f"placements has {shown(placement)}; pass Shard, Replicate or Partial")
        try:
            self.ptr = mesh_sharding(shape, ranks, kinds)
        except InvalidArgumentError as error:
            self.problem = str(error)

    cdef ShardingPtr checked(self) except *:
        if self.problem is not None:
            raise InvalidArgumentError(self.problem)
        return self.ptr

    def box(self, rank, shape):
        """Return the part of a tensor of this shape that ``rank`` has: a tuple of slices, one for each dimension; None
        where the rank is not in the mesh. Raises InvalidArgumentError where a placement divides a dimension that the
        tensor does not have."""
        cdef Numbers entries
        parse_shape(shape, entries)
        return slices_of(box_of(self.checked(), parse_int(rank, "rank"), entries))

    def __repr__(self):
        return f"Sharding({self.mesh.tolist()}, {list(self.placements)})"

    def __eq__(self, other):
        if not isinstance(other, Sharding):
            return NotImplemented
        return np.array_equal(self.mesh, other.mesh) and self.placements == other.placements

    def __hash__(self):
        return hash((self.mesh.shape, self.mesh.tobytes(), self.placements))

    def __reduce__(self):
        return Sharding, (self.mesh, self.placements)


cdef int parse_shape(object shape, Numbers& entries) except -1:
    parse_counts(shape, "shape", entries)
    for entry in entries:
        if entry < 0:
            raise InvalidArgumentError(f"shape is {shown(shape)}; it cannot have a dimension of {entry} entries")
    return 0


cdef object slices_of(const optional[Numbers]& numbers):
    """Return a box as a tuple of slices."""
    cdef Numbers entries
    cdef size_t i, dims
    if not numbers.has_value():
        return None
    entries = numbers.value()
    dims = entries.size() // 2
    return tuple([slice(entries[i], entries[i + dims]) for i in range(dims)])


cdef ShardingPtr parse_sharding(object given, str name, const Numbers& shape, int size) except *:
    """Convert a Sharding, or boxes by rank: a dict, or a list with an entry for each rank."""
    cdef BoxList* boxes
    cdef ShardingPtr made
    if isinstance(given, Sharding):
        try:
            return (<Sharding> given).checked()
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{name}: {error}") from None
    if isinstance(given, dict):
        items = list(given.items())
    elif isinstance(given, (list, tuple)):
        if len(given) != size:
            raise InvalidArgumentError(f"{name} has {len(given)} boxes, but the group has {size} ranks")
        items = list(enumerate(given))
    else:
        raise InvalidArgumentError(f"{name} is {shown(given)}; pass a Sharding, or boxes by rank: a dict or a list of "
                                   f"tuples of slices")
    boxes = new BoxList(size)
    try:
        for rank, box in items:
            add_box(boxes, parse_int(rank, f"a rank of {name}"), box, name, shape, size)
        made = boxes.sharding()
    finally:
        del boxes
    return made


cdef int add_box(BoxList* boxes, int rank, object box, str name, const Numbers& shape, int size) except -1:
    cdef Numbers begin, end
    cdef size_t i
    if not 0 <= rank < size:
        raise InvalidArgumentError(f"{name} names rank {rank}, but the group has {size} ranks")
    if box is None:
        return 0
    slices = (box,) if isinstance(box, slice) else box
    if not isinstance(slices, (tuple, list)) or len(slices) != shape.size():
        raise InvalidArgumentError(f"{name}[{rank}] is {shown(box)}; pass a tuple of {shape.size()} slices, one for "
                                   f"each dimension, or None")
    for i in range(shape.size()):
        one = slices[i]
        if not isinstance(one, slice) or one.step not in (None, 1):
            raise InvalidArgumentError(f"{name}[{rank}] has {shown(one)}; pass slices without a step")
        begin.push_back(0 if one.start is None else count_of(one.start, f"{name}[{rank}]", i))
        end.push_back(shape[i] if one.stop is None else count_of(one.stop, f"{name}[{rank}]", i))
    boxes.set(rank, begin, end)
    return 0
