"""Runs CMake's tools, which pip installs beside the interpreter whether or not that directory is on PATH."""

import os
import shutil
import subprocess
import sysconfig

PATH = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
MISSING = [tool for tool in ("cmake", "ctest", "ninja") if not shutil.which(tool, path=PATH)]


def run(*command: str) -> str:
    """The output of a command; AssertionError with all it printed when it fails."""
    env = {**os.environ, "PATH": PATH}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout
