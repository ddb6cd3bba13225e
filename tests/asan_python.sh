#!/usr/bin/env bash
# Runs Python tests on a library and an extension module that are built with AddressSanitizer, in the environment of the
# python3 on PATH, which has what the tests and an installation without build isolation need (CONTRIBUTING.md).
#
#   tests/asan_python.sh              the tests of the core, of plans, of operations in flight, of death and of fork()
#   tests/asan_python.sh ARGUMENT...  any others: arguments of pytest
#
# A2A_ASAN_DIR=DIRECTORY keeps the build for the next time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ -n ${A2A_ASAN_DIR:-} ]]; then
  work=$A2A_ASAN_DIR
else
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi
python3 -m pip install --quiet --no-deps --no-build-isolation --upgrade --target "$work/site" \
  -Cbuild-dir="$work/build" -Ccmake.define.A2A_SANITIZE=address .

tests=("$@")
if [[ $# -eq 0 ]]; then
  tests=()
  for name in core_ranks core_types plans work disagreement bad_arguments tensor shared_array death fork bootstrap; do
    tests+=(tests/python/*/"test_$name.py")
  done
fi
# The sanitizer has to come before everything else in a program that is not built with it, and it looks for the functions
# that throw when it starts. That python3 gives all of its memory back is not asked for, nor how Paddle does.
libasan=$(${CXX:-c++} -print-file-name=libasan.so)
libstdcxx=$(${CXX:-c++} -print-file-name=libstdc++.so)
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:alloc_dealloc_mismatch=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}
PYTHONPATH=$work/site LD_PRELOAD="$libasan $libstdcxx" python3 -m pytest "${tests[@]}"
