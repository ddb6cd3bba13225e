// Makes types whose instantiation from Python raises TypeError.
#pragma once

#include <Python.h>

namespace a2a_py {

// Refuses construction of the types in `advice`. The advice, by type, says what to call instead; it is kept. Call once,
// while the module is imported.
void disallow_instantiation(PyObject* advice);

}  // namespace a2a_py
