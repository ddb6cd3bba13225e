"""Torch's analysis of what ranks did, on what a2a records.

``A2A_DUMP=folder`` has every rank record its last operations, also one that is killed or hangs. This turns the records
into files that torch.distributed.flight_recorder reads, one for each process, as ``a2a explain --flight-recorder``
does::

    python -m a2a.torch.flight_recorder folder traces
    python -m torch.distributed.flight_recorder.fr_trace traces

``a2a explain folder`` says more of a2a's own: which rank is gone, and why arguments were refused."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import a2a
from a2a._flight_recorder import traces_of, write

__all__ = ["main", "traces_of", "write"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m a2a.torch.flight_recorder", description=__doc__)
    parser.add_argument("records", nargs="+", help="files of A2A_DUMP, or folders of them")
    parser.add_argument("folder", help="where the traces go")
    options = parser.parse_args(arguments)
    try:
        written = write(options.records, options.folder)
    except (a2a.InvalidArgumentError, OSError) as error:
        print(f"a2a.torch.flight_recorder: {error}", file=sys.stderr)
        return 1
    print(f"{len(written)} traces in {options.folder}; python -m torch.distributed.flight_recorder.fr_trace reads them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
