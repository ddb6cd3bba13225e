"""What ``import torch`` knows of a2a, and the name "gloo" where a program asks a2a to serve it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import command, environment
from torch_worlds import true_backends

pytest.importorskip("torch")

GROUPS = """
import os, sys, torch, torch.distributed as dist
print_ = lambda *facts: print(*facts) if os.environ.get("RANK", "0") == "0" else None
def tell(group=None):
    x = torch.ones(1)
    dist.all_reduce(x, group=group)
    group = group or dist.group.WORLD
    print_(dist.get_backend(group), dist.get_backend_config(group), group.name(), x.item())
"""


def name() -> str:
    """Of a group whose backend is "a2a"."""
    return "custom" if true_backends() else "a2a"


def python(code: str, **changes: str) -> list[str]:
    env = environment(**changes)
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def on_two_ranks(code: str, folder: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    program = folder / "program.py"
    program.write_text(GROUPS + code)
    line = command("run", "-n", "2", "--no-prefix", str(program))
    done = subprocess.run(line, env=environment(**changes), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_torch_knows_the_backend_and_imports_nothing_for_it() -> None:
    code = "import sys, torch, torch.distributed as dist\nfacts = lambda: dist.is_backend_available('a2a')\n"
    loaded = "print([name for name in sys.modules if name.startswith('a2a')], facts())\n"
    assert python(code + loaded) == ["['a2a_autoload._later', 'a2a_autoload._libraries', 'a2a_autoload'] True"]
    off = python(code + loaded + "import a2a.torch\nprint(facts())", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert off == ["[] False", "True"]


def test_groups_need_no_import(tmp_path: Path) -> None:
    """Of the backend, and of the launcher's ranks where env:// does not find them."""
    code = """
dist.init_process_group("a2a")
tell()
dist.destroy_process_group()
del os.environ["MASTER_PORT"]
dist.init_process_group("a2a", init_method="a2a://")
tell()
dist.destroy_process_group()
"""
    done = on_two_ranks(code, tmp_path)
    assert done.stdout == 2 * f"a2a cpu:a2a,cuda:a2a {name()} 2.0\n", done.stderr


def test_torchs_own_groups_are_what_they_are_without_a2a() -> None:
    """A group that is named by device loses its default backend where torch lists any backend of others."""
    code = """
dist.init_process_group("cpu:gloo", store=dist.HashStore(), rank=0, world_size=1)
tell()
dist.destroy_process_group()
"""
    assert python(f"{GROUPS}{code}import a2a.torch{code}") == 2 * ["cpu:gloo cpu:gloo gloo 1.0"]


@pytest.mark.full
def test_another_torch_is_imported_all_the_same() -> None:
    code = (
        "import warnings, a2a_autoload\n"
        "def fails(): raise AttributeError('no such name')\n"
        "a2a_autoload.register = fails\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import torch\n"
        "print([str(one.message) for one in caught if 'a2a' in str(one.message)])"
    )
    assert python(code) == ["""['torch does not know the backend "a2a": no such name']"""]


def test_a_program_that_asks_for_gloo_runs_on_a2a(tmp_path: Path) -> None:
    """get_backend() says what was asked for, because libraries compare it; the group and its configuration say a2a.
    Groups within a group are served, too, and so are the calls that torch allows for Gloo only."""
    code = f"""
import os
for asked in ("cpu:gloo", "cpu:gloo,cuda:nccl", None, "gloo"):
    # Each has a store of its own: a rank that is ahead would meet at the store of the group before.
    store = dist.FileStore(f"{tmp_path}/store of {{asked}}", 2)
    dist.init_process_group(asked, store=store, rank=int(os.environ["RANK"]), world_size=2)
    tell()
    dist.barrier()
    if asked == "gloo":
        for group in (dist.new_group(), dist.new_group(backend="gloo"), dist.new_group([0]), dist.new_group([1])):
            if group != dist.GroupMember.NON_GROUP_MEMBER:
                tell(group)
        dist.monitored_barrier()
    dist.destroy_process_group()
"""
    done = on_two_ranks(code, tmp_path, A2A_TORCH_GLOO="on", A2A_LOG="info")
    ours = f" cpu:a2a,cuda:a2a {name()} "
    worlds = [f"{asked}{ours}2.0" for asked in ("cpu:gloo", "cpu:gloo,cuda:nccl", "undefined", "gloo")]
    within = [f"gloo{ours}{total}" for total in ("2.0", "2.0", "1.0")]
    assert done.stdout.splitlines() == worlds + within, done.stderr
    assert done.stderr.count(': a2a serves the backend "cpu:gloo"') == 2


def test_the_call_serves_the_groups_that_follow(tmp_path: Path) -> None:
    code = """
import a2a.torch
dist.init_process_group("gloo")
tell()
a2a.torch.serve_gloo()
a2a.torch.serve_gloo()
tell(dist.new_group(backend="gloo"))
tell()
dist.destroy_process_group()
"""
    done = on_two_ranks(code, tmp_path)
    theirs = "gloo cpu:gloo,cuda:gloo gloo 2.0"
    assert done.stdout.splitlines() == [theirs, f"gloo cpu:a2a,cuda:a2a {name()} 2.0", theirs], done.stderr


@pytest.mark.full
def test_other_backends_stay_and_nonsense_is_refused() -> None:
    code = f"""{GROUPS}
import torch.testing._internal.distributed.fake_pg
dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=1)
print(dist.group.WORLD.name())
dist.destroy_process_group()
try:
    dist.init_process_group("glooo", store=dist.HashStore(), rank=0, world_size=1)
except Exception as error:
    print(type(error).__name__)
"""
    assert python(code, A2A_TORCH_GLOO="1") == python(code, A2A_TORCH_GLOO="off")
    code = "try: import torch\nexcept RuntimeError as error: print(type(error.__cause__).__name__, error.__cause__)"
    assert python(code, A2A_TORCH_GLOO="maybe") == [
        "InvalidArgumentError A2A_TORCH_GLOO=maybe in the environment is none of 1, 0, on, off, true, false, yes, no"
    ]


LIBRARIES = {
    "accelerate/__init__.py": "",
    "accelerate/state.py": """
class PartialState:
    def _prepare_backend(self, cpu=False, sagemaker_dp=False, backend=None):
        return ("gloo", "MULTI_CPU") if cpu else (backend, "NO")
""",
    "ignite/__init__.py": "",
    "ignite/distributed/__init__.py": "",
    "ignite/distributed/comp_models/__init__.py": "",
    "ignite/distributed/comp_models/native.py": """
NCCL, GLOO, MPI = "nccl", "gloo", "mpi"
class _NativeDistModel:
    available_backends = ("gloo",)
""",
}


def libraries(folder: Path, **changes: str) -> str:
    """A path to doubles of what a2a knows of Accelerate and Ignite, and nothing else."""
    changed = {name.replace("__", "/") + ".py": text for name, text in changes.items()}
    for name, text in {**LIBRARIES, **changed}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return f"import sys\nsys.path.insert(0, {str(folder)!r})\n"


def test_lists_of_libraries_have_the_name(tmp_path: Path) -> None:
    """Whether they are imported before torch or after it. The libraries themselves: test_torch_libraries.py."""
    show = """
state = accelerate.state.PartialState()
print([state._prepare_backend(cpu, backend=name) for cpu in (True, False) for name in ("a2a", "gloo", None)])
print(native.NCCL, native.GLOO, native.MPI, native._NativeDistModel.available_backends)
"""
    use = "import accelerate.state\nfrom ignite.distributed.comp_models import native\n"
    told, other = ("a2a", "MULTI_CPU"), ("gloo", "MULTI_CPU")
    for imports in (f"import torch\n{use}", f"{use}import torch\n"):
        assert python(libraries(tmp_path) + imports + show) == [
            str([told, other, other, told, ("gloo", "NO"), (None, "NO")]),
            "nccl gloo a2a ('gloo', 'a2a')",
        ]


@pytest.mark.full
def test_libraries_of_another_version_are_named(tmp_path: Path) -> None:
    """Only where there is a group of a2a."""
    path = libraries(tmp_path, accelerate__state="", ignite__distributed__comp_models__native="")
    code = f"""{path}{GROUPS}
import warnings, accelerate.state, ignite.distributed.comp_models.native
for backend in ("gloo", "a2a", "a2a"):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    print(sorted(str(one.message)[:26] for one in caught if "cannot be told" in str(one.message)))
    dist.destroy_process_group()
"""
    named = ["this version of Accelerate", "this version of Ignite can"]
    assert python(code) == ["[]", str(named), "[]"]
