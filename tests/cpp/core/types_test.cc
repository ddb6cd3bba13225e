#include "a2a/types.h"

#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "check.h"

using namespace a2a;

TEST("a dtype has the name that NumPy, Torch and ml_dtypes give it") {
  const std::pair<DType, const char*> names[] = {
      {{0, 8, 1}, "int8"},
      {{0, 16, 1}, "int16"},
      {{0, 32, 1}, "int32"},
      {{0, 64, 1}, "int64"},
      {{0, 4, 1}, "int4"},
      {{1, 8, 1}, "uint8"},
      {{1, 16, 1}, "uint16"},
      {{1, 32, 1}, "uint32"},
      {{1, 64, 1}, "uint64"},
      {{2, 16, 1}, "float16"},
      {{2, 32, 1}, "float32"},
      {{2, 64, 1}, "float64"},
      {{4, 16, 1}, "bfloat16"},
      {{5, 32, 1}, "complex32"},
      {{5, 64, 1}, "complex64"},
      {{5, 128, 1}, "complex128"},
      {{6, 8, 1}, "bool"},
      {{7, 8, 1}, "float8_e3m4"},
      {{8, 8, 1}, "float8_e4m3"},
      {{9, 8, 1}, "float8_e4m3b11fnuz"},
      {{10, 8, 1}, "float8_e4m3fn"},
      {{11, 8, 1}, "float8_e4m3fnuz"},
      {{12, 8, 1}, "float8_e5m2"},
      {{13, 8, 1}, "float8_e5m2fnuz"},
      {{14, 8, 1}, "float8_e8m0fnu"},
      {{15, 6, 1}, "float6_e2m3fn"},
      {{16, 6, 1}, "float6_e3m2fn"},
      {{17, 4, 1}, "float4_e2m1fn"},
      {{17, 4, 2}, "float4_e2m1fn_x2"},
      {{2, 32, 4}, "float32_x4"},
  };
  for (const auto& [dtype, name] : names) CHECK_EQ(to_string(dtype), name);
}

TEST("a dtype without a name shows its triple") {
  CHECK_EQ(to_string(DType{3, 64, 1}), "dtype(3, 64, 1)");
  CHECK_EQ(to_string(DType{6, 1, 1}), "dtype(6, 1, 1)");
  CHECK_EQ(to_string(DType{10, 16, 1}), "dtype(10, 16, 1)");
  CHECK_EQ(to_string(DType{18, 8, 1}), "dtype(18, 8, 1)");
  CHECK_EQ(to_string(DType{255, 255, 65535}), "dtype(255, 255, 65535)");
}

TEST("different dtypes have different names") {
  std::set<std::string> names;
  int count = 0;
  for (int code = 0; code < 256; ++code) {
    for (int bits = 0; bits < 256; ++bits) {
      for (const int lanes : {0, 1, 2, 65535}) {
        names.insert(to_string({static_cast<uint8_t>(code), static_cast<uint8_t>(bits), static_cast<uint16_t>(lanes)}));
        ++count;
      }
    }
  }
  CHECK_EQ(names.size(), count);
}

TEST("bytes of a dtype") {
  CHECK_EQ(DType{}.bytes(), 1);
  CHECK_EQ((DType{5, 128, 1}.bytes()), 16);
  CHECK_EQ((DType{17, 4, 2}.bytes()), 1);
  CHECK_EQ((DType{2, 255, 65535}.bytes()), 255 * 65535 / 8);
}

TEST("memories and operations have names, unknown values too") {
  CHECK_EQ(std::string(to_string(Memory::host)), "host");
  CHECK_EQ(std::string(to_string(Memory::cuda)), "cuda");
  CHECK_EQ(std::string(to_string(Memory::npu)), "npu");
  CHECK_EQ(std::string(to_string(Memory{99})), "unknown memory");

  const char* const names[] = {
      "alltoallv",      "alltoall", "alltoall_list",   "allgather",       "global_scatter", "global_gather",
      "exchange",       "barrier",  "split",           "group",           "shrink",         "plan",
      "close",          "connect",  "allgather_views", "allgather_bytes", "exchange",       "allreduce",
      "reduce_scatter", "reduce",   "broadcast",       "gather",          "scatter",        "allgatherv",
      "send",           "recv",     "dispatch",        "dispatch",        "combine",        "give_back",
      "scan",           "exscan",   "reshard"};
  uint8_t op = 0;
  for (const char* name : names) CHECK_EQ(std::string(to_string(Op{++op})), name);
  CHECK_EQ(Op{op}, Op::reshard);
  CHECK_EQ(std::string(to_string(Op{0})), "unknown operation");
  CHECK_EQ(std::string(to_string(Op{static_cast<uint8_t>(op + 1)})), "unknown operation");
}

TEST("a deadline lies so many seconds ahead") {
  for (const double ahead : {1e-9, 0.001, 0.5, 600.0, 86400.0 * 365, 3e9}) {
    const auto before = Deadline::Clock::now();
    const Deadline deadline = Deadline::after_seconds(ahead);
    const double real = std::chrono::duration<double>(deadline.when() - before).count();
    CHECK(real >= ahead * (1 - 1e-15));
    CHECK(real < ahead + 1);
    CHECK(deadline.passed(deadline.when()));
    CHECK(!deadline.passed(deadline.when() - std::chrono::nanoseconds(1)));
  }
}

TEST("no seconds mean that the deadline has passed") {
  CHECK(Deadline::after_seconds(0).passed());
  CHECK(Deadline::after_seconds(-0.0).passed());
  CHECK(Deadline::after_seconds(std::numeric_limits<double>::denorm_min()).passed());
}

TEST("negative, huge and undefined seconds mean never") {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double never : {-1.0, -1e-300, -infinity, infinity, std::nan(""), 4e9, 9.3e9, 1.9e10, 1e300}) {
    const Deadline deadline = Deadline::after_seconds(never);
    CHECK(deadline.when() == Deadline::never().when());
    CHECK(!deadline.passed());
    CHECK(!deadline.passed(Deadline::Clock::time_point::max()));
  }
}

TEST("an error keeps its code and its text") {
  const Error error(Code::peer_lost, "rank 3 is gone");
  CHECK_EQ(error.code(), Code::peer_lost);
  CHECK_EQ(std::string(error.what()), "rank 3 is gone");
}
