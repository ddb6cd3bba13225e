"""A C++ test has the name of the source that it tests, in the folder of tests/cpp for the source's folder."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "src" / "cpp"
TESTS = ROOT / "tests" / "cpp"

FOLDERS = {"core": "core", "shm": "transport/shm", "hosts": "transport/hosts"}
"""Folder of tests/cpp, and the folder of src/cpp in which each source has a test."""

TESTED_BY = {
    # Communicator is one class in several files.
    "core/communicator_device": "device/stream_transport_test",
    "core/communicator_groups": "core/communicator_test",
    "core/communicator_start": "core/communicator_test",
    "core/communicator_message": "core/communicator_inl_test",
    "core/communicator_reshard": "core/communicator_inl_test",
    "core/communicator_state": "core/communicator_test",
    "core/communicator_views": "core/views_test",
    # Kernels and files of a class that has a test.
    "core/fold/fold_avx2": "core/fold_test",
    "core/fold/fold_kernels": "core/fold_test",
    "core/fold/small_floats": "core/fold_test",
    "core/fold/weighted_sum": "core/summing_test",
    "core/plan_rows": "core/plan_test",
    "core/stages/topology": "core/arrange_test",
    # Pure functions of one page each, which `arrange` calls.
    "core/stages/choose": "core/arrange_test",
    "core/stages/host_first": "core/arrange_test",
    "core/stages/in_parts": "core/arrange_test",
    "core/stages/ring": "core/arrange_test",
    "core/stages/segments": "core/arrange_test",
    "core/record": "core/dump_test",
    # Arithmetic of boxes and what a sharding is made of; who sends what.
    "core/sharding/boxes": "core/sharding_test",
    "core/sharding/parts": "core/sharding_test",
    "core/sharding/pieces": "core/reshard_test",
    "core/sharding/sharding_state": "core/sharding_test",
    "core/strided/packing": "core/strides_test",
    "core/strided/sharing": "core/strides_test",
    "core/strided/transpose": "core/strides_test",
    # Interfaces.
    "core/connect": "core/communicator_test",
    "core/device_transport": "device/stream_transport_test",
    "core/transport": "shm/shm_transport_test",
    "transport/hosts/network": "tcp/connection_test",
    # Exchange is one class in four files, ShmTransport in five.
    "transport/shm/advance": "shm/exchange_test",
    "transport/shm/post": "shm/exchange_test",
    "transport/shm/watch": "shm/shm_transport_test",
    "transport/shm/explain": "shm/shm_transport_test",
    "transport/shm/device_operations": "nccl/nccl_test",
    "transport/shm/shrink": "core/communicator_test",
    # One header each: ways.h with link.h, sinks.h, messages.h with the words of its mailboxes.
    "transport/shm/ways/inlined": "shm/ways_test",
    "transport/shm/ways/link": "shm/ways_test",
    "transport/shm/ways/pull": "shm/ways_test",
    "transport/shm/ways/staged": "shm/ways_test",
    "transport/shm/sinks/copy": "shm/sinks_test",
    "transport/shm/sinks/discard": "shm/sinks_test",
    "transport/shm/sinks/fold": "shm/sinks_test",
    "transport/shm/sinks/weighted_sum": "shm/sinks_test",
    "transport/shm/messages/arriving": "shm/messages_test",
    "transport/shm/messages/receive": "shm/messages_test",
    "transport/shm/messages/send": "shm/messages_test",
    "transport/shm/protocol/mailbox": "shm/mailboxes_test",
}
"""Sources without a test of their name, and the test of the unit to which they belong."""

OF_SEVERAL = {
    "core/communicator_reduction_test",
    "core/conformance_test",
    "core/nth_failure_test",
    "core/plan_refusal_test",
    "shm/bit_flip_test",
    "shm/chunks_in_flight_test",
    "shm/packet_flip_test",
}
"""Tests that try something with many sources, or that are a second test of one, and have the name of what they try."""

pytestmark = pytest.mark.skipif(not SOURCES.exists(), reason="no source tree beside the tests")


def sources() -> Iterator[tuple[str, Path]]:
    """Yield the folder of tests and the path, without its suffix, of each source."""
    for folder, where in FOLDERS.items():
        files = {path.with_suffix("") for path in (SOURCES / where).rglob("*") if path.suffix in (".h", ".cc")}
        yield from ((folder, path.relative_to(SOURCES)) for path in sorted(files))


def own_tests() -> set[str]:
    """Return the sources with a test of their name. Of several with one name it is the one whose header is included."""
    namesakes = Counter((folder, source.name) for folder, source in sources())
    found = set()
    for folder, source in sources():
        test = TESTS / folder / f"{source.name}_test.cc"
        if test.exists() and (namesakes[folder, source.name] == 1 or f'#include "{source}.h"' in test.read_text()):
            found.add(str(source))
    return found


@pytest.mark.smoke
def test_each_source_has_a_test_of_its_name() -> None:
    own = own_tests()
    every = {str(source) for _, source in sources()}
    missing = every - own - TESTED_BY.keys()
    assert not missing, f"write tests/cpp/<folder>/<name>_test.cc, or name the test of the unit here: {sorted(missing)}"
    assert not own & TESTED_BY.keys(), "they have a test of their name, which is enough"
    assert not TESTED_BY.keys() - every, "there are no such sources"


def test_tests_that_are_named_exist() -> None:
    missing = {test for test in {*TESTED_BY.values(), *OF_SEVERAL} if not (TESTS / f"{test}.cc").exists()}
    assert not missing


def test_each_test_has_the_name_of_a_source() -> None:
    names = {f"{folder}/{source.name}_test" for folder, source in sources()}
    names |= {f"core/{path.stem}_test" for path in (SOURCES / "a2a").glob("*.h")}
    tests = {f"{folder}/{path.stem}" for folder in FOLDERS for path in (TESTS / folder).glob("*_test.cc")}
    assert tests - names == OF_SEVERAL
