# The declarations of a2a/quantize.h and cpp/quantize.h. The callers check all lengths.
from libc.stdint cimport int8_t, uint16_t


cdef extern from "cpp/quantize.h":
    void cpp_dequantize_sum "a2a_py::dequantize_sum"(
        const int8_t*, size_t, size_t, const float*, size_t, const float*, size_t, size_t, float*) nogil
    void cpp_dequantize_blocks_sum "a2a_py::dequantize_blocks_sum"(
        const int8_t*, const float*, size_t, size_t, size_t, float*) nogil


cdef extern from "a2a/quantize.h" namespace "a2a" nogil:
    void cpp_to_float "a2a::to_float"(const uint16_t*, size_t, float*)
    void cpp_to_half "a2a::to_half"(const float*, size_t, uint16_t*)
    void cpp_bfloat16_to_float "a2a::bfloat16_to_float"(const uint16_t*, size_t, float*)
    void cpp_to_bfloat16 "a2a::to_bfloat16"(const float*, size_t, uint16_t*)
    void cpp_quantize_blocks "a2a::quantize_blocks"(const float*, size_t, size_t, int8_t*, float*)
