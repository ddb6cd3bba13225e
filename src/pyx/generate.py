"""Writes what follows from collectives.pyi, the table of collectives: ``python generate.py FOLDER``.

FOLDER gets collectives.pxi, the methods of Communicator in Cython; _core.pyi, the stub of the module: the _core.pyi of
this folder with the methods of the table; and operations.pxd, the operations of a2a/operations.h for Cython. A build
runs this; nobody edits or commits what it writes."""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
OPERATIONS = HERE.parent / "cpp" / "a2a" / "operations.h"
STUB_MARK = "    # Here the methods of collectives.pyi.\n"
LAST = [("async_op", "bool", "False"), ("stream", "StreamLike", "None"), ("timeout", "float | None", "None")]
"""The last arguments of every method: name, type and default."""


@dataclass(frozen=True)
class Argument:
    name: str
    type: str
    default: str
    """An expression, or "" for none."""
    by_name: bool
    """Whether it is given by name only."""


@dataclass(frozen=True)
class Entry:
    """A method of the table."""

    name: str
    arguments: list[Argument]
    returns: str
    doc: str
    collective: bool
    """Otherwise a message."""
    columns: dict[str, str | bool]

    def has(self, argument: str) -> bool:
        return any(argument == one.name for one in self.arguments)

    @property
    def op(self) -> str:
        return str(self.columns.get("op", self.name))

    @property
    def by(self) -> str:
        return str(self.columns.get("by", ""))

    @property
    def root_has(self) -> str:
        return str(self.columns.get("root_has", ""))

    @property
    def in_place(self) -> bool:
        return bool(self.columns.get("in_place"))

    @property
    def planned(self) -> bool:
        return self.collective and not self.has("sends")

    @property
    def of_plan(self) -> list[Argument]:
        """The arguments of the plan_* form."""
        return [one for one in self.arguments if one.name != "out"]

    @property
    def sides(self) -> str:
        """The tensors that a rank has in a run of a plan: a value of Sides."""
        if self.has("tensor"):
            return "Sides.only_send if self._rank == at else Sides.only_recv"
        whole = "Sides.one_or_both" if self.in_place else "Sides.both"
        if self.root_has:
            other = {"send": "Sides.only_recv", "recv": "Sides.only_send"}[self.root_has]
            return f"{whole} if self._rank == at else {other}"
        return whole

    @property
    def plan_doc(self) -> str:
        if "plan" in self.columns:
            return textwrap.dedent("    " + str(self.columns["plan"])).strip()
        doc = f"A reusable {self.name}; see plan_alltoallv."
        if self.has("tensor"):
            return f"{doc} Its runs get the tensor alone: ``plan.run(tensor)``."
        if self.has("out"):
            return f"{doc} ``x`` gives dtype and row size."
        if self.root_has:
            return f"{doc} Its runs get None for ``{self.root_has}`` on all ranks but the root."
        return f"{doc} Its runs may be given ``recv`` or not." if self.in_place else doc


def read_table() -> list[Entry]:
    entries = []
    for node in ast.parse((HERE / "collectives.pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            (kind,) = node.decorator_list
            assert isinstance(kind, ast.Call) and isinstance(kind.func, ast.Name) and node.returns is not None
            columns = {one.arg or "": ast.literal_eval(one.value) for one in kind.keywords}
            doc, returns = ast.get_docstring(node) or "", ast.unparse(node.returns)
            is_collective = kind.func.id == "collective"
            entries.append(Entry(node.name, list(_arguments(node.args)), returns, doc, is_collective, columns))
    return entries


def _arguments(given: ast.arguments) -> Iterator[Argument]:
    without_default = len(given.args) - len(given.defaults)
    defaults = [*[None] * without_default, *given.defaults, *given.kw_defaults]
    for at, (one, default) in enumerate(zip([*given.args, *given.kwonlyargs], defaults, strict=True)):
        assert one.annotation is not None
        text = "" if default is None else ast.unparse(default).replace("'", '"')
        yield Argument(one.arg, ast.unparse(one.annotation).replace("'", '"'), text, at >= len(given.args))


# ---- Cython ----------------------------------------------------------------------------------------------------------


def methods(entries: list[Entry]) -> str:
    """Return collectives.pxi."""
    lines = ["# Written by generate.py from collectives.pyi.", "", "", "cdef class _Collectives(_Exchanges):", ""]
    for entry in entries:
        lines += [*_method(entry), ""]
        if entry.planned:
            lines += [*_plan_method(entry), ""]
    renamed = [f'"{entry.name}": Op.{entry.op}' for entry in entries if entry.op != entry.name]
    lines += ["", f"operation_names |= {{{', '.join(renamed)}}}", ""]
    return "\n".join(lines)


def _method(entry: Entry) -> Iterator[str]:
    last = ["bint async_op=False", "stream=None", "timeout=None"]
    if entry.collective:
        yield "    @collective"
    yield f"    def {entry.name}({', '.join(['self', *_signature(entry.arguments, last)])}):"
    yield _docstring(entry.doc)
    if entry.by:
        yield f"        return self.{entry.by}({_names(f'Op.{entry.op}', entry.arguments)}, async_op, stream, timeout)"
        return
    yield from _locals(entry)
    output = "tensor" if entry.has("tensor") else "recv"
    written = f'claim({output}, "{output}")'
    if entry.in_place:
        output, written = "send if recv is None else recv", "claim_either(send, recv)"
    yield "        try:"
    for line in _parse(entry, "stream, timeout"):
        yield f"            {line}"
    yield f"            tensors = {_prepare(entry, entry.arguments, 'async_op')}"
    if entry.has("tensor"):
        yield "            if self._rank != at:"
        yield f"                {written}"
    elif entry.root_has == "recv":
        yield "            if self._rank == at:"
        yield f"                {written}"
    else:
        yield f"            {written}"
    yield "        except BaseException as error:"
    yield "            raise self.refused(x.call, error)"
    read = "tensor" if entry.has("tensor") else "send"
    yield f"        return self.launch(x, async_op, tensors, {output}, None, {read})"


def _plan_method(entry: Entry) -> Iterator[str]:
    yield "    @collective"
    yield f"    def plan_{entry.name}({', '.join(['self', *_signature(entry.of_plan, [])])}):"
    yield _docstring(entry.plan_doc)
    if entry.by:
        yield f"        return self.plan_{entry.by}({_names(f'Op.{entry.op}', entry.of_plan)})"
        return
    yield from _locals(entry)
    yield "        cdef uint64_t number = self.next_plan()"
    for line in _parse(entry, "None, None"):
        yield f"        {line}"
    yield f"        {_prepare(entry, entry.of_plan, 'False')}"
    row_bytes = "0 if is_divided(x) else x.call.unit_bytes" if entry.columns.get("rows") else "0"
    yield f"        return make_plan(self, x, {row_bytes}, number, {entry.sides})"


def _locals(entry: Entry) -> Iterator[str]:
    yield "        cdef Exchange x"
    if entry.has("root"):
        yield "        cdef int at"


def _parse(entry: Entry, last: str) -> Iterator[str]:
    if entry.has("op"):
        yield f"parse_reduction(&x.call, Op.{entry.op}, op, {last})"
    else:
        yield f"parse_call(&x.call, Op.{entry.op}, {last})"
    if entry.has("root"):
        yield 'at = self.parse_rank(root, "root")'


def _prepare(entry: Entry, arguments: list[Argument], keep: str) -> str:
    names = ["at" if one.name == "root" else one.name for one in arguments if one.name != "op"]
    return f"prepare_{entry.name}({', '.join(['x', 'self', *names, keep])})"


def _names(first: str, arguments: list[Argument]) -> str:
    return ", ".join([first, *(one.name for one in arguments)])


def _signature(arguments: list[Argument], last: list[str]) -> list[str]:
    """``last`` are further arguments that are given by name."""
    texts = [(one.name + (f"={one.default}" if one.default else ""), one.by_name) for one in arguments]
    by_name = [*(text for text, named in texts if named), *last]
    return [*(text for text, named in texts if not named), *(["*", *by_name] if by_name else [])]


def _docstring(doc: str) -> str:
    return textwrap.indent(f'"""{doc}"""', "        ")


def operations() -> str:
    """Return operations.pxd."""
    found = re.findall(r"^ *X\((\w+), (\d+), ", OPERATIONS.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for _, number in found] == [*range(1, len(found) + 1)]
    names = "\n".join(f"        {name}" for name, _ in found)
    return f"""# Written by generate.py from a2a/operations.h.
cdef extern from "a2a/types.h" nogil:
    enum class Op "a2a::Op":
{names}

    const char* op_string "a2a::to_string"(Op)

cdef enum:
    LAST_OPERATION = {len(found)}
"""


# ---- the stub --------------------------------------------------------------------------------------------------------


def stub(entries: list[Entry], *, overloads: bool = True) -> str:
    """Return _core.pyi. Without ``overloads`` each method has the one signature that has the docstring."""
    text = (HERE / "_core.pyi").read_text(encoding="utf-8")
    assert text.count(STUB_MARK) == 1
    lines = [line for entry in entries for line in _stub_method(entry, overloads)]
    lines += [line for entry in entries if entry.planned for line in _stub_plan(entry)]
    return text.replace(STUB_MARK, "\n".join(lines) + "\n")


def _stub_method(entry: Entry, overloads: bool) -> Iterator[str]:
    own, (asynchronous, *others) = entry.arguments, [Argument(*one, True) for one in LAST]
    waits = Argument(asynchronous.name, "Literal[False]", "False", True)
    returns_at_once = Argument(asynchronous.name, "Literal[True]", "", True)
    either = f"Work | {entry.returns}"
    if overloads:
        yield from ("    @overload", *_stub_signature(entry.name, [*own, waits, *others], entry.returns, " ..."))
        yield from ("    @overload", *_stub_signature(entry.name, [*own, returns_at_once, *others], "Work", " ..."))
        yield "    @overload"
    yield from _stub_signature(entry.name, [*own, asynchronous, *others], either, "")
    yield _docstring(entry.doc)


def _stub_plan(entry: Entry) -> Iterator[str]:
    yield from _stub_signature(f"plan_{entry.name}", entry.of_plan, "Plan", "")
    yield _docstring(entry.plan_doc)


def _stub_signature(name: str, arguments: list[Argument], returns: str, body: str) -> Iterator[str]:
    yield f"    def {name}("
    yield "        self,"
    for at, one in enumerate(arguments):
        if one.by_name and not arguments[at - 1].by_name:
            yield "        *,"
        yield f"        {one.name}: {one.type}{f' = {one.default}' if one.default else ''},"
    yield f"    ) -> {returns}:{body}"


def write(folder: Path) -> None:
    """Write the files that differ from what they should be, so that a build compiles nothing again without need."""
    entries = read_table()
    files = {"collectives.pxi": methods(entries), "_core.pyi": stub(entries), "operations.pxd": operations()}
    for name, text in files.items():
        file = folder / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
