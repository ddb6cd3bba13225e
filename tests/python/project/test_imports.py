"""No module of the package imports itself by way of others: not even inside of functions, which would only hide it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import a2a
import a2a_autoload
import a2a_pytest

FOLDERS = [Path(module.__file__ or "").parent for module in (a2a, a2a_autoload, a2a_pytest)]


def modules_in(folders: list[Path]) -> dict[str, Path]:
    """Return the modules of these packages by name. Of a compiled one the stub stands for it: it has no imports."""
    found = {}
    for folder in folders:
        for path in [*folder.rglob("*.pyi"), *folder.rglob("*.py")]:
            parts = path.relative_to(folder.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_by(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules that a module names in its imports. The packages around those are not among them: a package
    that imports its modules is no cycle."""
    found: set[str] = set()
    if path.suffix == ".pyi":
        return found
    for node in _statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                found.add(inner if (inner := f"{source}.{alias.name}") in known else source)
    return (found & known.keys()) - {name}


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Return all statements but those for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from [other, *_statements(other)]
        else:
            yield child
            yield from _statements(child)


def cycles_in(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules of which each imports every other, perhaps by way of others."""
    reached = {name: _reached_from(name, imports) for name in imports}
    groups = {tuple(sorted(other for other in found if name in reached[other])) for name, found in reached.items()}
    return sorted(map(list, groups - {()}))


def _reached_from(name: str, imports: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    todo = list(imports[name])
    while todo:
        one = todo.pop()
        if one not in found:
            found.add(one)
            todo += imports[one]
    return found


def imports_of_the_package() -> dict[str, set[str]]:
    known = modules_in(FOLDERS)
    return {name: imported_by(name, path, known) for name, path in known.items()}


def test_no_module_imports_itself_by_way_of_others() -> None:
    imports = imports_of_the_package()
    assert len(imports) > 100 and "a2a.torch._errors" in imports["a2a.torch"]
    assert cycles_in(imports) == []


def test_folders_of_an_adapter_stand_on_one_another() -> None:
    """What lies in a folder of its own may not need a folder that needs it."""
    folders: dict[str, set[str]] = {}
    for name, others in imports_of_the_package().items():
        if name.startswith("a2a.torch."):
            at = _folder_of(name)
            folders.setdefault(at, set()).update(
                _folder_of(other) for other in others if other.startswith("a2a.torch.")
            )
            folders[at].discard(at)
    assert folders["a2a.torch._calls"] >= {"a2a.torch._process_group", "a2a.torch._operations"}
    assert cycles_in(folders) == []


def _folder_of(name: str) -> str:
    return ".".join(name.split(".")[:3])


def test_a_cycle_is_found_wherever_the_import_stands(tmp_path: Path) -> None:
    sources = {
        "__init__": "from . import one",
        "one": "import typing\nif typing.TYPE_CHECKING:\n    from .four import x",
        "two": "def f():\n    from . import three",
        "three": "from .four import x",
        "four": "try:\n    import p.two\nexcept ImportError:\n    pass\nfrom .one import y",
    }
    folder = tmp_path / "p"
    folder.mkdir()
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    known = modules_in([folder])
    imports = {name: imported_by(name, path, known) for name, path in known.items()}
    assert imports["p"] == {"p.one"} and imports["p.four"] == {"p.one", "p.two"}
    assert cycles_in(imports) == [["p.four", "p.three", "p.two"]]
