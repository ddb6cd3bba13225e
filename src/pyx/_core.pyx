# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, auto_pickle=False, autotestdict=False
# cython: freethreading_compatible=True
# distutils: language = c++
"""The compiled core: errors, communicators, plans and work on any DLPack tensor."""

cimport cython
cimport numpy as cnp
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE, PyObject_CheckBuffer
from cpython.dict cimport PyDict_GetItem
from cpython.exc cimport PyErr_CheckSignals
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from cpython.object cimport PyObject
from cpython.pycapsule cimport (
    PyCapsule_CheckExact,
    PyCapsule_GetPointer,
    PyCapsule_IsValid,
    PyCapsule_New,
    PyCapsule_SetName,
)
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.unicode cimport PyUnicode_FromObject
from cython.operator cimport dereference
from libc.stdint cimport SIZE_MAX, int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.vector cimport vector

from a2a cimport *
from background cimport *
from collective cimport *
from dlpack cimport *
from experts cimport *
from layouts cimport *
from operations cimport *
from quantize cimport *
from reshard cimport *
from simulator cimport *
from tracebacks cimport *
from xla cimport *

import importlib
import os
import site
import sys
from functools import partial
from time import sleep

import numpy as np

cnp.import_array()
cdef object ndarray = np.ndarray

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object, int*) except? -1
    unsigned long PyThread_get_thread_ident()

cdef extern from *:
    const char* A2A_VERSION     # CMake defines it

core_version = A2A_VERSION.decode()

include "errors.pxi"
include "protocols.pxi"
include "dtypes.pxi"
include "frameworks.pxi"
include "tensor.pxi"
include "layouts.pxi"
include "autograd.pxi"
include "numpy_and_buffers.pxi"
include "call_site.pxi"
include "arguments.pxi"
include "checked_arrays.pxi"
include "shared_array.pxi"
include "allocate.pxi"
include "operation_arguments.pxi"
include "reduction_arguments.pxi"
include "collective.pxi"
include "communicator_base.pxi"
include "message_calls.pxi"
include "exchanges.pxi"
include "work.pxi"
include "plan.pxi"
include "collectives.pxi"
include "views.pxi"
include "sharding.pxi"
include "reshard.pxi"
include "communicator.pxi"
include "expert_dispatch.pxi"
include "expert_weights.pxi"
include "expert_routing.pxi"
include "complex_as_real.pxi"
include "shape_exchange.pxi"
include "dialect_arguments.pxi"
include "dialect.pxi"
include "bootstrap.pxi"
include "endpoint.pxi"
include "quantize.pxi"
include "simulator.pxi"
include "xla.pxi"
include "disallow_instantiation.pxi"


def describe_tensor(obj):
    """Return the properties of a tensor as this package sees them: {"shape", "dtype", "device", "contiguous",
    "writable", "framework", "bytes"}. ``writable`` is None where the producer does not say. Raises InvalidArgumentError
    for an object that is not a tensor."""
    cdef View view
    view_of(obj, "tensor", True, False, &view)
    return {
        "shape": tuple([view.shape[i] for i in range(view.ndim)]),
        "dtype": dtype_name(view.dtype),
        "device": (int(view.device.device_type), view.device.device_id),
        "contiguous": bool(view.contiguous),
        "writable": None if view.access == UNKNOWN else view.access == WRITABLE,
        "framework": framework_of(obj),
        "bytes": view.nbytes,
    }
