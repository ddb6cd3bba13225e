// The cases of the conformance kit through the C++ calls: plans, communicators, and the arithmetic of a2a/quantize.h.
#include "a2a/quantize.h"
#include "cases.h"
#include "ranks.h"

namespace {

using namespace conformance;

// Returns the elements that a document gives.
template <class T>
Bytes elements(const Json& values) {
  Bytes result;
  const auto append = [&result](const Json& number) {
    const T element = static_cast<T>(std::stod(number.text));
    const auto* bytes = reinterpret_cast<const std::byte*>(&element);
    result.insert(result.end(), bytes, bytes + sizeof(element));
  };
  for (const Json& value : values.items) {
    if (value.items.empty()) append(value);
    for (const Json& part : value.items) append(part);  // of a complex number
  }
  return result;
}

struct Documented {
  const char* dtype;
  size_t unit;
  Bytes (*elements)(const Json&);
};

// Dtypes in which the documents' examples are given.
constexpr Documented kDocumented[] = {{"int64", 8, elements<int64_t>},
                                      {"float32", 4, elements<float>},
                                      {"complex64", 8, elements<float>},
                                      {"int8", 1, elements<int8_t>}};

void exchange(Communicator& comm, const CaseView& v, const Plan& plan, const std::vector<Bytes>& sends,
              const std::vector<Bytes>& wanted) {
  constexpr size_t kGuard = 64;
  const auto extents = plan.recv_extents();
  const size_t room = std::accumulate(extents.begin(), extents.end(), size_t{0}) + kGuard * (extents.size() + 1);
  Bytes memory(room, kPoison), expected_memory(room, kPoison);  // outputs one after the other, guards between them
  std::vector<const void*> from;
  std::vector<void*> to;
  size_t at = kGuard;
  for (const Bytes& one : sends) from.push_back(one.data());
  for (const Bytes& one : wanted) {
    to.push_back(memory.data() + at);
    std::copy(one.begin(), one.end(), expected_memory.begin() + static_cast<std::ptrdiff_t>(at));
    at += one.size() + kGuard;
  }
  const std::vector<Bytes> before = sends;
  Call call;
  call.op = op_of(v.op());
  comm.start(plan, from, to, call)->wait();
  if (!CHECK(memory == expected_memory && sends == before)) {
    std::cerr << "  case: " << member(v.facts, "name").text << '\n';
  }
}

void run(Communicator& comm, const Json& facts, size_t unit) {
  const CaseView v{facts, comm.rank(), comm.size(), unit};
  const Plan plan = plan_of(v);
  exchange(comm, v, plan, inputs(plan, comm.rank()), expected(v, plan));
}

// Returns whether the case has elements of its own.
bool run_documented(Communicator& comm, const Json& facts) {
  if (facts.find("send") == nullptr || facts.find("expected") == nullptr) return false;
  for (const Json& dtype : member(facts, "dtypes").items) {
    const auto* kind = std::find_if(std::begin(kDocumented), std::end(kDocumented),
                                    [&](const Documented& one) { return dtype.text == one.dtype; });
    if (kind == std::end(kDocumented)) continue;
    const CaseView v{facts, comm.rank(), comm.size(), kind->unit};
    const Plan plan = plan_of(v);
    const auto in_words = [&](const char* name, std::span<const size_t> sizes) {
      return cut(kind->elements(v.of(name, comm.rank())), sizes);
    };
    exchange(comm, v, plan, in_words("send", plan.send_extents()), in_words("expected", plan.recv_extents()));
  }
  return true;
}

// Returns every element size for small cases. Large cases have their size in bytes.
std::vector<size_t> units_of(const Json& facts) {
  if (member(facts, "dtypes").items.size() == 1) return {1};
  return {1, 2, 4, 8, 16};
}

TEST("every case through plans, in every size of element") {
  const std::vector<Json> all = cases();
  CHECK(all.size() > 400);
  for (int n = 1; n <= kMostRanks; ++n) {
    const check::Note note("ranks", static_cast<uint64_t>(n));
    ranks::everywhere(n, [&](Communicator& comm) {
      for (const Json& facts : all) {
        if (ranks_of(facts) != n || !is_exchange(facts)) continue;
        for (const size_t unit : units_of(facts)) run(comm, facts, unit);
      }
    });
  }
}

TEST("every example of the documents with its own elements") {
  const std::vector<Json> all = cases();
  for (const auto& [size, number] : {std::pair{2, 6}, {3, 1}, {4, 11}}) {
    const int n = size;
    const auto examples = std::count_if(all.begin(), all.end(), [n](const Json& facts) {
      return ranks_of(facts) == n && is_exchange(facts) && facts.find("expected") != nullptr;
    });
    CHECK_EQ(examples, number);
    ranks::everywhere(n, [&](Communicator& comm) {
      int64_t ran = 0;
      for (const Json& facts : all) {
        if (ranks_of(facts) == n && is_exchange(facts)) ran += run_documented(comm, facts);
      }
      CHECK_EQ(ran, examples);
    });
  }
}

// ---- a2a/quantize.h ------------------------------------------------------------------------------------------------

std::vector<float> floats(const Json& array) {
  std::vector<float> result;
  for (const Json& item : array.items) result.push_back(std::stof(item.text));
  return result;
}

// Runs the example of ATB's page: all-to-all of int8, sum, float16, all-gather. Every rank adds up the same number of
// elements, so the last ranks add up padding, too.
void run_quantized(Communicator& comm, const Json& facts) {
  const CaseView v{facts, comm.rank(), comm.size(), 1};
  const auto n = static_cast<size_t>(comm.size());
  const auto elems = static_cast<size_t>(product(member(facts, "shape")));
  const size_t share = (elems + n - 1) / n;
  const auto scale = floats(member(facts, "scale")), offset = floats(member(facts, "offset"));
  const auto input = [&](Rank rank) {
    Bytes x = v.has("send") ? elements<int8_t>(v.of("send", rank)) : pattern(rank, elems);
    x.resize(share * n);
    return x;
  };
  const auto sum = [&](const std::byte* parts, size_t count, size_t first) {
    std::vector<float> y(count);
    std::vector<uint16_t> half(count);
    dequantize_sum({reinterpret_cast<const int8_t*>(parts), n * count}, n, count, scale, offset, first, y.data());
    to_half(y.data(), count, half.data());
    return half;
  };
  const auto start = [&comm](const Plan& plan, const void* from, void* to, Op op) {
    Call call;
    call.op = op;
    comm.start(plan, {&from, 1}, {&to, 1}, call)->wait();
  };
  const Bytes mine = input(comm.rank());
  Bytes parts(share * n, kPoison);
  const Counts shares(n, static_cast<int64_t>(share));
  const Layout layout{shares, {}};
  start(Plan::alltoallv(comm.rank(), comm.size(), 1, layout, share * n, layout, share * n), mine.data(), parts.data(),
        Op::alltoallv);
  const auto summed = sum(parts.data(), share, share * static_cast<size_t>(comm.rank()));
  std::vector<uint16_t> result(share * n);
  start(Plan::allgather(comm.rank(), comm.size(), share * 2), summed.data(), result.data(), Op::allgather);
  result.resize(elems);

  Bytes everything;
  for (Rank rank = 0; rank < comm.size(); ++rank) {
    const Bytes theirs = input(rank);
    everything.insert(everything.end(), theirs.begin(), theirs.begin() + static_cast<std::ptrdiff_t>(elems));
  }
  std::vector<uint16_t> wanted = sum(everything.data(), elems, 0);
  if (v.has("expected")) to_half(floats(v.of("expected", comm.rank())).data(), elems, wanted.data());
  if (!CHECK(result == wanted)) std::cerr << "  case: " << member(facts, "name").text << '\n';
}

TEST("every case of the quantised all-reduce") {
  const std::vector<Json> all = cases();
  for (int n = 1; n <= kMostRanks; ++n) {
    ranks::as_threads(n, [&](Communicator& comm) {
      int ran = 0;
      for (const Json& facts : all) {
        if (ranks_of(facts) != n || member(facts, "op").text != "quantized_all_reduce") continue;
        run_quantized(comm, facts);
        ++ran;
      }
      CHECK(ran >= 2);
    });
  }
}

}  // namespace
