"""The manifest for Kubernetes and the batch script for Slurm that the guide shows, as they stand there. Pods and nodes
are network namespaces; what kubelet and srun would do is done here."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from commands import environment, needs
from network_hosts import namespace

pytestmark = pytest.mark.timeout(100)
GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "launchers.md"
PROGRAM = """
import numpy as np
import a2a
comm = a2a.init(timeout=60)
recv = np.empty(comm.size, int)
comm.alltoall(np.arange(comm.size) + 10 * comm.rank, recv)
assert (recv == 10 * np.arange(comm.size) + comm.rank).all()
print(f"rank {comm.rank} of {comm.size} is fine", flush=True)
comm.close()
"""


def block(language: str, text: str) -> str:
    """Return the guide's code block of this language that contains ``text``."""
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    return next(one for one in blocks if text in one)


@pytest.fixture
def names(addresses: list[str]) -> Any:
    """Give the namespaces names, as a cluster's name server does."""
    files = [Path("/etc/netns") / namespace(number) / "hosts" for number in range(len(addresses))]
    before = [file.read_text() for file in files]

    def give(*called: str) -> None:
        lines = [f"{address} {name}\n" for address, name in zip(addresses, called, strict=False)]
        for file, text in zip(files, before, strict=True):
            file.write_text(text + "".join(lines))

    yield give
    for file, text in zip(files, before, strict=True):
        file.write_text(text)


def value_of(entry: dict[str, Any], secrets: dict[str, dict[str, str]], facts: dict[str, str]) -> str:
    """What kubelet makes of one entry of a container's ``env``."""
    if "value" in entry:
        return str(entry["value"])
    source = entry["valueFrom"]
    if "fieldRef" in source:
        return facts[source["fieldRef"]["fieldPath"]]
    return secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]


def test_kubernetes(addresses: list[str], names: Any, tmp_path: Path) -> None:
    needs("yaml")
    import yaml

    service, job = yaml.safe_load_all(block("yaml", "kind: Job"))
    name, spec = job["metadata"]["name"], job["spec"]
    pod = spec["template"]["spec"]
    assert service["metadata"]["name"] == pod["subdomain"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert spec["completions"] == spec["parallelism"]
    [container] = pod["containers"]
    (tmp_path / "program.py").write_text(PROGRAM)
    pods = len(addresses)  # the machine of the test may have fewer namespaces than the manifest has pods
    names(*(f"{name}-{index}.{pod['subdomain']}" for index in range(pods)))
    running = []
    for index in range(pods):
        facts = {
            "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index),
            "metadata.labels['batch.kubernetes.io/controller-uid']": "0d6f8a3c",
        }
        env = {one["name"]: value_of(one, {name: {"secret": "ab" * 32}}, facts) for one in container["env"]}
        assert env["A2A_SIZE"] == str(spec["completions"])
        command = ["ip", "netns", "exec", namespace(index), *container["command"]]
        env = environment(**env | {"A2A_SIZE": str(pods)})
        running.append(subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True))
    said = "".join(one.communicate(timeout=80)[0] for one in running)
    assert sorted(re.findall("rank .*", said)) == [f"rank {rank} of {pods} is fine" for rank in range(pods)]


SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for rank in 0 1 2 3; do
  SLURM_PROCID=$rank SLURM_LOCALID=$((rank % 2)) SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_NNODES=2 \\
    SLURM_STEP_NUM_NODES=2 ip netns exec "$PREFIX-$((rank / 2))" "$@" &
  tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || code=1; done
exit "${code:-0}"
"""
SCONTROL = """#!/bin/bash
[[ "$*" == "show hostnames node[0-1]" ]] && printf 'node0\\nnode1\\n'
"""


def test_slurm(names: Any, tmp_path: Path) -> None:
    names("node0", "node1")
    for file, text in {"srun": SRUN, "scontrol": SCONTROL, "job.sh": block("sh", "#SBATCH")}.items():
        (tmp_path / file).write_text(text)
        (tmp_path / file).chmod(stat.S_IRWXU)
    (tmp_path / "program.py").write_text(PROGRAM)
    slurm = {"SLURM_JOB_ID": "4242", "SLURM_JOB_NODELIST": "node[0-1]", "SLURM_SUBMIT_DIR": str(tmp_path)}
    own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PREFIX": namespace(0).removesuffix("-0")}
    done = subprocess.run(
        [tmp_path / "job.sh"],
        env=environment(**slurm, **own),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 4 is fine" for rank in range(4)]
    assert not list(tmp_path.glob("a2a-secret*"))
