// Collective calls: when one raises before it has taken all of its numbers, the peers are told.
#pragma once

#include <Python.h>

#include <cstdint>

namespace a2a_py {

// What the innermost collective call of this thread has done. Its operations are counted, not the numbers that they
// take: a control call counts as one.
struct Scope {
  uint64_t operations = 0;  // operations that this thread has started, or refused, so far
  uint64_t failed = 0;      // `operations` after the last operation that failed: on every rank, so that no peer goes on
  uint64_t begin = 0;       // `operations` when the call began
  uint64_t end = 1;         // `operations` when it has started all of its operations
  bool together = false;    // whether every rank starts all of them, even if one fails
};
inline constinit thread_local Scope scope;

inline void count_operation() { ++scope.operations; }
inline void note_failed() { scope.failed = scope.operations; }
inline void takes(uint64_t operations, bool together) {
  scope.end = scope.begin + operations;
  scope.together = together;
}
inline uint64_t operations_so_far() { return scope.operations; }

// Tells the peers of the communicator that is among the arguments. Arguments given by name come last. Does not
// raise. Returns nullptr, or a new reference to what a signal handler has raised meanwhile.
using Tell = PyObject* (*)(PyObject* wrapped, PyObject* const* args, Py_ssize_t count, PyObject* error);
inline Tell tell_peers = nullptr;

// Return a new reference, or nullptr with an exception set: the type of the functions around others, and such a
// function around `wrapped`.
PyObject* make_collective_type();
PyObject* make_collective(PyObject* type, PyObject* wrapped);

}  // namespace a2a_py
