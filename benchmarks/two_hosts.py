"""The driver of two_hosts.sh: waits for the ranks of two machines, measures, and writes a table and JSON."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path

from host_turns import await_ranks, header, line, listen, measure, verdicts

SIZES = [64 << 2 * power for power in range(11)]  # to 64 MiB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--contenders", nargs="+", required=True)
    parser.add_argument("--each", type=int, default=1, help="ranks on each machine")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=300.0, help="for all of it")
    parser.add_argument("--wait", type=float, default=300.0, help="seconds for the ranks to come")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="bytes of each rank's tensor")
    parser.add_argument("--output", type=Path, default=Path("two_hosts"), help="writes OUTPUT.json and OUTPUT.txt")
    options = parser.parse_args()
    cases = [(op, size) for op in ("allreduce", "alltoall") for size in options.sizes]
    names, points, lines = options.contenders, [], []

    def say(*said: str) -> None:
        lines.extend(said)
        print(*said, sep="\n", flush=True)

    with listen(port=options.port) as door:
        print(f"# waiting for {2 * options.each} ranks of {', '.join(names)}", flush=True)
        contenders = await_ranks(door, dict.fromkeys(names, 2 * options.each), options.wait)
    say(f"# two machines with {options.each} ranks each", header(names))
    for case in cases:
        points.append(measure(contenders, case, options.seconds / len(cases), options.rounds))
        say(line(points[-1], names, None))
    say(*verdicts(points, names[0]), *(f"# {one}" for one in contenders))
    for one in contenders:
        one.dismiss()
    info = subprocess.run([sys.executable, "-m", "a2a", "info", "--json"], capture_output=True, text=True, check=False)
    facts = {"machine": platform.platform(), "info": json.loads(info.stdout or "{}"), "each": options.each}
    options.output.with_suffix(".txt").write_text("\n".join(lines) + "\n")
    options.output.with_suffix(".json").write_text(json.dumps(facts | {"points": points}, indent=1) + "\n")
    return 1 if any(any(point["wrong"].values()) for point in points) or all(one.failed for one in contenders) else 0


if __name__ == "__main__":
    sys.exit(main())
