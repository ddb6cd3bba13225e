"""The process group for torchft: its Manager's own steps, with a replica that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

pytest.importorskip("torchft", reason="torchft is not installed")
pytestmark = pytest.mark.timeout(110)

_REPLICA = """
import json, os, signal, sys, torch, torch.distributed as dist
from datetime import timedelta
from torchft import DistributedDataParallel, Manager, Optimizer
from a2a.torch.torchft import ProcessGroupA2A

name, lighthouse, dies = sys.argv[1], sys.argv[2], sys.argv[3] == "True"
store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
torch.manual_seed(int(name))  # the first quorum makes the weights equal
net = torch.nn.Linear(3, 2)
manager = Manager(
    pg=ProcessGroupA2A(timedelta(seconds=20)), min_replica_size=2, use_async_quorum=True, replica_id=name, rank=0,
    world_size=1, store_addr="localhost", store_port=store.port, lighthouse_addr=lighthouse,
    timeout=timedelta(seconds=20), quorum_timeout=timedelta(seconds=40),
    state_dict=lambda: {"net": net.state_dict(), "optimizer": optimizer.state_dict()},
    load_state_dict=lambda state: (net.load_state_dict(state["net"]), optimizer.load_state_dict(state["optimizer"])),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
model, steps = DistributedDataParallel(manager, net), Optimizer(manager, optimizer)
sizes = []
while manager.current_step() < 6:
    steps.zero_grad()
    model(torch.full((1, 3), 1.0 + int(name))).square().sum().backward()
    if dies and manager.current_step() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    steps.step()
    sizes.append(manager.num_participants())
print(json.dumps({"sizes": sizes, "weights": net.weight.flatten().tolist(), "steps": manager.current_step()}))
manager.shutdown(wait=False)
os._exit(0)
"""


def test_the_others_go_on_without_a_killed_replica() -> None:
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=2, join_timeout_ms=2000, heartbeat_timeout_ms=1000)
    replicas = [
        subprocess.Popen(
            [sys.executable, "-c", _REPLICA, str(name), lighthouse.address(), str(name == 1)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name in range(3)
    ]  # fmt: skip
    deadline = time.monotonic() + 90
    try:
        ended = [one.communicate(timeout=max(1.0, deadline - time.monotonic())) for one in replicas]
    finally:
        for one in replicas:
            one.kill()
        lighthouse.shutdown()
    assert [one.returncode for one in replicas] == [0, -9, 0], ended
    first, last = (json.loads(ended[at][0].splitlines()[-1]) for at in (0, 2))
    assert first["weights"] == last["weights"] and first["steps"] == last["steps"] == 6
    assert 3 in first["sizes"] and first["sizes"][-1] == last["sizes"][-1] == 2
