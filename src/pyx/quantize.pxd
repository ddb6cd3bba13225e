# The declarations of a2a/quantize.h. The callers check all lengths.
from libc.stdint cimport int8_t, uint16_t


cdef extern from *:
    """
    #include "a2a/quantize.h"

    namespace a2a_py {

    inline void dequantize_sum(const int8_t* parts, size_t ranks, size_t elems, const float* scale, size_t scales,
                               const float* offset, size_t offsets, size_t first, float* out) {
      a2a::dequantize_sum({parts, ranks * elems}, ranks, elems, {scale, scales}, {offset, offsets}, first, out);
    }

    inline void dequantize_blocks_sum(const int8_t* q, const float* scales, size_t ranks, size_t elems, size_t block,
                                      float* out) {
      a2a::dequantize_blocks_sum({q, ranks * elems}, {scales, ranks * a2a::blocks_of(elems, block)}, ranks, elems,
                                 block, out);
    }

    }  // namespace a2a_py
    """
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
