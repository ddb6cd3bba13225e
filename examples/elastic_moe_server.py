"""A server of a small mixture of experts that loses a rank::

    a2a run -n 4 --restarts 1 examples/elastic_moe_server.py

Rank 0 is the front end: clients ask it, and it hands their tokens to the ranks, step by step. Rank 2 dies. The step
that it breaks is run again by the survivors, so no client sees an error. The rank is started again, joins, and gets
experts by a placement that is balanced for the measured loads. The latency of every answer is kept.

Arguments: --seconds (4), --die (1.0: when rank 2 dies, 0 for never), --plot FILE (needs matplotlib)."""

import argparse
import json
import os
import queue
import shutil
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import a2a
from a2a import moe

EXPERTS, HIDDEN, TOP_K, SLOTS, CLIENTS = 8, 32, 2, 4, 4
GATE = np.random.default_rng(0).standard_normal((HIDDEN, EXPERTS), np.float32)
GATE[:, 0] *= 3  # a busy expert


def checkpoint(expert):
    """The weights of an expert, as a server would read them from a file."""
    return [np.random.default_rng(expert + 1).standard_normal((HIDDEN, HIDDEN), np.float32) / HIDDEN**0.5]


def choose(x):
    scores = x @ GATE
    topk_idx = np.argsort(-scores, axis=1)[:, :TOP_K]
    weights = np.exp(np.take_along_axis(scores, topk_idx, 1) / 8)
    return topk_idx, (weights / weights.sum(1, keepdims=True)).astype(np.float32)


def right(x):
    """The answer as one process computes it."""
    topk_idx, weights = choose(x)
    expert = [checkpoint(e)[0] for e in range(EXPERTS)]
    terms = [[weights[t, k] * (x[t] @ expert[topk_idx[t, k]]) for k in range(TOP_K)] for t in range(len(x))]
    return np.array(terms).sum(1)


class Rank:
    """What every rank does: the steps that rank 0 announces."""

    def __init__(self, number, folder):
        self.number, self.folder, self.endpoint = number, folder, a2a.Endpoint()
        self.loads, self.ep = np.zeros(EXPERTS), None
        self.generation = 0
        write(folder / f"{number}.{os.environ.get('A2A_RESTART', 0)}.handle", self.endpoint.handle)

    def enter(self, handles, generation):
        """Go on as one of these ranks. Experts that nobody has come from the checkpoint."""
        first = generation == 0
        self.use(self.endpoint.connect(handles, generation, timeout=30), first)

    def use(self, comm, first=False):
        self.comm, comm.timeout = comm, 30
        if first:
            self.ep = moe.ExpertParallel(comm, EXPERTS, replicas=2)
            self.weights = [np.stack([checkpoint(e)[0] for e in self.ep.local_experts])]
            return
        if self.ep is None:
            self.ep, self.weights = moe.ExpertParallel.join(comm), [np.zeros((0, HIDDEN, HIDDEN), np.float32)]
        else:
            self.ep.connect(comm)
        if not all(self.ep.expert_to_rank):
            self.balance()

    def balance(self):
        comm = self.comm
        comm.broadcast(self.loads, root=0)
        homes = moe.balanced_placement(self.loads + 1, comm.size, max(SLOTS, -(-EXPERTS // comm.size)))
        self.weights = self.ep.place(homes, self.weights, load=checkpoint)

    def obey(self, order):
        """Do what rank 0 says. Returns the answers of a step, None at the end."""
        order = json.loads(self.comm.allgather_bytes(json.dumps(order).encode())[0])
        if order["do"] == "step":
            return self.step(order["tokens"])
        if order["do"] == "connect":
            handles = [one.decode() for one in self.comm.allgather_bytes(self.endpoint.handle.encode())]
            self.generation = order["generation"]
            if self.comm.rank == 0:
                write(self.folder / f"{self.generation}.generation", json.dumps(handles + order["new"]))
            self.enter(handles + order["new"], self.generation)
        if order["do"] in ("connect", "balance"):
            self.balance()
        return None if order["do"] == "stop" else True

    def step(self, tokens):
        comm = self.comm
        whole = self.batch if comm.rank == 0 else np.empty((tokens, HIDDEN), np.float32)
        comm.broadcast(whole, root=0)
        counts = [len(part) for part in np.array_split(whole, comm.size)]
        x = np.array_split(whole, comm.size)[comm.rank]
        topk_idx, topk_weights = choose(x)
        routed = self.ep.dispatch(x, topk_idx, topk_weights)
        assert len(routed.dropped) == 0
        rows = np.empty_like(routed.x)
        for weight, begin, end in zip(self.weights[0], routed.offsets[:-1], routed.offsets[1:], strict=True):
            rows[begin:end] = routed.x[begin:end] @ weight
        answers = np.empty((tokens, HIDDEN), np.float32)
        comm.allgatherv(self.ep.combine(rows, routed), answers, counts)
        return answers

    def attempt(self, order):
        """The same, made again by the survivors if a rank dies."""
        while True:
            try:
                return self.obey(order)
            except (a2a.PeerLostError, a2a.AbortedError):
                self.survive()
                if self.comm.rank != 0:
                    return True  # rank 0 says again what is to be done

    def survive(self):
        comm = self.comm
        while True:
            comm = comm.shrink(30)
            try:
                return self.use(comm)
            except (a2a.PeerLostError, a2a.AbortedError):
                continue


def client(requests, done, answered, seed):
    """Asks, waits for the answer, compares it, and asks again."""
    random = np.random.default_rng(seed)
    while not done.is_set():
        x, began, reply = random.standard_normal((3, HIDDEN)).astype(np.float32), time.monotonic(), queue.Queue()
        requests.put((x, reply))
        y = reply.get(timeout=60)
        answered.append((began, time.monotonic() - began, bool(np.allclose(y, right(x), rtol=1e-3, atol=1e-4))))


def front_end(rank, size, options):
    requests, done, answered, began, joined = queue.Queue(), threading.Event(), [], time.monotonic(), 0
    clients = [threading.Thread(target=client, args=(requests, done, answered, n)) for n in range(CLIENTS)]
    for thread in clients:
        thread.start()
    members, steps = {f"{number}.0" for number in range(size)}, 0
    while time.monotonic() - began < options.seconds or any(thread.is_alive() for thread in clients):
        if time.monotonic() - began >= options.seconds:
            done.set()
        batch = []
        while len(batch) < CLIENTS:
            try:
                batch.append(requests.get(timeout=0.002))
            except queue.Empty:
                break
        if batch:
            rank.batch = np.concatenate([x for x, _ in batch])
            answers = rank.attempt({"do": "step", "tokens": len(rank.batch)})
            ends = np.cumsum([len(x) for x, _ in batch])
            for (x, reply), y in zip(batch, np.split(answers, ends[:-1]), strict=True):
                rank.loads += np.bincount(choose(x)[0].ravel(), minlength=EXPERTS)
                reply.put(y)
        steps += 1
        if steps % 100 == 0:
            rank.attempt({"do": "balance"})
        new = {path.stem: path.read_text() for path in rank.folder.glob("*.handle") if path.stem not in members}
        if new:
            members, joined = members | set(new), joined + len(new)
            rank.attempt({"do": "connect", "new": list(new.values()), "generation": rank.generation + 1})
    rank.attempt({"do": "stop"})
    report(answered, began, joined, options)


def join(rank):
    """Enter the generation that rank 0 makes for this rank."""
    while True:
        for path in rank.folder.glob("*.generation"):
            handles = json.loads(path.read_text())
            if rank.endpoint.handle in handles:
                rank.enter(handles, int(path.stem))
                return rank.balance()
        time.sleep(0.005)


def write(path, text):
    """A file that is whole, or not there."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


def report(answered, began, joined, options):
    slowest = max(seconds for _, seconds, _ in answered)
    wrong = sum(not fine for _, _, fine in answered)
    median = np.median([seconds for _, seconds, _ in answered])
    print(f"{len(answered)} answers, {wrong} wrong, {joined} joined, median {median * 1e3:.1f} ms, slowest "
          f"{slowest * 1e3:.1f} ms", flush=True)  # fmt: skip
    if options.plot:
        import matplotlib.pyplot as plt

        plt.plot([at - began for at, _, _ in answered], [seconds * 1e3 for _, seconds, _ in answered], ".")
        plt.xlabel("seconds"), plt.ylabel("latency, ms"), plt.savefig(options.plot)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--die", type=float, default=1.0)
    parser.add_argument("--plot")
    options = parser.parse_args()
    number, size = int(os.environ["A2A_RANK"]), int(os.environ["A2A_SIZE"])
    folder = Path(tempfile.gettempdir(), f"a2a-server-{os.environ['A2A_JOB']}")
    folder.mkdir(exist_ok=True)
    rank, new = Rank(number, folder), os.environ.get("A2A_RESTART", "0") != "0"
    if new:
        join(rank)
    else:
        paths = [folder / f"{other}.0.handle" for other in range(size)]
        while not all(path.exists() for path in paths):
            time.sleep(0.01)
        rank.enter([path.read_text() for path in paths], 0)
    if number == 2 and options.die and not new:
        threading.Timer(options.die, os._exit, (1,)).start()
    if number == 0:
        front_end(rank, size, options)
        shutil.rmtree(folder)
    else:
        while rank.attempt(None) is not None:
            pass
    rank.comm.close()


if __name__ == "__main__":
    main()
