// The part of XLA's interface for custom calls (xla/ffi/api/c_api.h) that handlers need, in declarations of our own, so
// that a build needs no JAX. XLA keeps this binary interface stable; a test compares it with the header of an installed
// JAX.
#pragma once

#include <cstddef>
#include <cstdint>

namespace a2a_py::xla {

struct Error;  // XLA's own

enum class ErrorCode : int {
  cancelled = 1,
  invalid_argument = 3,
  deadline_exceeded = 4,
  not_found = 5,
  failed_precondition = 9,
  aborted = 10,
  unimplemented = 12,
  internal = 13,
  unavailable = 14,
};

enum class DataType : int { s32 = 4, s64 = 5, token = 17 };

struct Extension {
  size_t struct_size;
  int type;
  Extension* next;

  static constexpr int kMetadata = 1;
};

struct ApiVersion {
  size_t struct_size;
  Extension* extensions;
  int major, minor;
};

struct ErrorArguments {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  ErrorCode code;
};

// What XLA offers, up to the only function that is called.
struct Api {
  size_t struct_size;
  Extension* extensions;
  ApiVersion version;
  const void* internal;
  Error* (*create_error)(ErrorArguments*);
};

struct Buffer {
  size_t struct_size;
  Extension* extensions;
  DataType dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

// Arguments or results. All are buffers.
struct Buffers {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int* types;
  Buffer** all;
};

struct Name {
  const char* data;
  size_t size;
};

struct Scalar {
  DataType dtype;
  void* value;
};

struct Attributes {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int* types;
  Name** names;
  void** values;

  static constexpr int kScalar = 3;
};

struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  void* context;
  int stage;
  Buffers arguments, results;
  Attributes attributes;

  static constexpr int kExecute = 3;
};

// XLA asks a handler for its version before the first call.
struct Metadata {
  size_t struct_size;
  ApiVersion version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

}  // namespace a2a_py::xla
