"""Rank tables in Python: what they say, what is said of a wrong one, and operations that take rank and size from one.
The reader is the C++ one; atb_rank_table_test.cc has its other mistakes."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import atb_ranks
import numpy as np
import pytest
from rank_pool import Pool

import a2a
from a2a import atb

pytestmark = pytest.mark.timeout(110)
TWO = {"send_counts": [1, 1], "sdispls": [0, 1], "recv_counts": [1, 1], "rdispls": [0, 1], "backend": "shm"}


def table(ranks: int, servers: int = 1) -> dict[str, Any]:
    per_server = ranks // servers
    return {
        "status": "completed",
        "version": "1.0",
        "server_count": str(servers),
        "server_list": [
            {
                "server_id": f"node_{server}",
                "host_ip": f"172.16.0.{server}",
                "device": [
                    {
                        "device_id": str(d),
                        "device_ip": f"10.0.{server}.{d + 1}",
                        "device_port": "16667",
                        "rank_id": str(server * per_server + d),
                    }
                    for d in range(per_server)
                ],
            }
            for server in range(servers)
        ],
    }


def super_pods() -> dict[str, Any]:
    content = table(4, 2)
    content["version"] = "1.2"
    for server in content["server_list"]:
        for device in server["device"]:
            device["super_device_id"] = device["rank_id"]
            device["backup_device_ip"], device["backup_device_port"] = "10.1.0.1", "16668"
    content["super_pod_list"] = [{"super_pod_id": "pod", "server_list": [{"server_id": f"node_{i}"} for i in (0, 1)]}]
    return content


def test_contents(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table(4, 2)))
    read = atb.read_rank_table(path)
    assert (read.version, read.size, read.hosts) == ("1.0", 4, ("node_0", "node_1"))
    assert read.ranks[3] == atb.RankPlace("node_1", "172.16.0.1", "1", "10.0.1.2", "", "")
    path.write_text(json.dumps(super_pods()))
    read = atb.read_rank_table(str(path))
    assert (read.version, read.size) == ("1.2", 4)
    assert read.ranks[2] == atb.RankPlace("node_1", "172.16.0.1", "0", "10.0.1.1", "2", "pod")


# ---- mistakes -------------------------------------------------------------------------------------------------------


def places(node: Any, path: str = "$", keys: tuple[Any, ...] = ()) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    """Every value of a document with its JSON path."""
    yield path, keys, node
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in inner:
        yield from places(value, f"{path}.{key}" if isinstance(key, str) else f"{path}[{key}]", (*keys, key))


OTHER_KINDS = {"null": None, "a boolean": True, "a number": 7, "a string": "x", "an array": [], "an object": {}}
KIND_OF = {str: "a string", list: "an array", dict: "an object"}


def replaced(document: Any, keys: tuple[Any, ...], value: Any) -> Any:
    if not keys:
        return value
    document = copy.deepcopy(document)
    at = document
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    return document


def test_every_value_of_another_kind_is_named_by_its_path(tmp_path: Path) -> None:
    path, mutations = tmp_path / "table.json", 0
    for document in (table(2), super_pods()):
        for at, keys, value in places(document):
            ours = KIND_OF[type(value)]
            for kind, other in OTHER_KINDS.items():
                if kind == ours:
                    continue
                path.write_text(json.dumps(replaced(document, keys, other)))
                with pytest.raises(a2a.InvalidArgumentError) as refused:
                    atb.read_rank_table(path)
                assert str(refused.value) == f"{path}: {at}: is {kind}, not {ours}"
                mutations += 1
    assert mutations > 200


def refusal(path: Any) -> str:
    with pytest.raises(a2a.InvalidArgumentError) as refused:
        atb.read_rank_table(path)
    return str(refused.value)


def test_a_path_in_a_message_is_one_short_line(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text('{"a\\n\\u001b[31m": {"b": [1, tru]}}')
    assert refusal(path) == f'{path}: $["a\\x0a\\x1b[31m"].b[1]: line 1, column 29: expected a value, found "t"'
    path.write_text('{"' + "k" * 100_000 + '": !}')
    assert len(refusal(path)) < 300 + len(str(path))


def test_what_is_no_table_file(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table(2)))
    assert refusal(tmp_path) == f"{tmp_path}: is not a regular file"
    assert refusal("table.json\0.bak") == r'rankTableFile path: "table.json\x00.bak" holds a NUL'
    assert refusal("") == "rankTableFile path:  does not exist."
    assert refusal(3) == "file is 3; pass a path"
    assert refusal("\ud800") == r"file is '\ud800'; pass a path"
    os.mkfifo(tmp_path / "pipe")
    program = f"from a2a import atb; atb.read_rank_table({str(tmp_path / 'pipe')!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert "pipe: is not a regular file" in done.stderr


def test_a_table_of_many_names_is_read_in_no_time(tmp_path: Path) -> None:
    """Quadratic in the names of an object, this took minutes."""
    path = tmp_path / "table.json"
    names = ",".join(f'"k{i}":0' for i in range(300_000))
    path.write_text(json.dumps(table(2))[:-1] + "," + names + "}")
    start = time.monotonic()
    assert atb.read_rank_table(path).size == 2
    assert time.monotonic() - start < 30


# ---- operations -----------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_rank_and_size_from_a_rank_table(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table(3)))
    with Pool(3) as pool:
        assert pool.run(atb_ranks.from_rank_table, str(path)) == [[0.0, 1.0, 2.0]] * 3


def test_a_rank_table_of_several_servers(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table(2, 2)))
    operation = atb.AllToAllVOperation(atb.AllToAllVParam(0, 2, **TWO, rank_table_file=path))
    with pytest.raises(a2a.UnsupportedError, match="places the ranks on 2 servers"):
        operation.forward([np.zeros(2, np.float32)])
    with pytest.raises(a2a.InvalidArgumentError, match=r"rankSize \[1\], but the rank table .* has 2 ranks"):
        one = {name: value[:1] if name != "backend" else value for name, value in TWO.items()}
        atb.AllToAllVOperation(atb.AllToAllVParam(0, 1, **one, rank_table_file=path))
