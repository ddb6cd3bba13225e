#include "a2a/communicator.h"

#include <sched.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "core/communicator_state.h"
#include "core/connect.h"
#include "runtime/hash.h"

namespace a2a {
namespace {

// Hashes all strings that go through a bootstrap. All ranks see the same strings, and no later group sees them again,
// so the hash identifies the group.
class HashingBootstrap final : public Bootstrap {
 public:
  explicit HashingBootstrap(Bootstrap& base) : base_(base) {}

  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) override {
    auto all = base_.allgather(mine, deadline);
    for (const std::string& one : all) hash_.add(one);
    return all;
  }
  void while_meeting() override { base_.while_meeting(); }
  bool has_network() const override { return base_.has_network(); }
  std::shared_ptr<hosts::Network> network(Deadline deadline) override { return base_.network(deadline); }
  std::vector<int> processes() const override { return base_.processes(); }
  std::optional<std::string> host() const override { return base_.host(); }
  bool met_before() const override { return base_.met_before(); }

  uint64_t group() const { return hash_.value(); }

 private:
  Bootstrap& base_;
  Hash hash_;
};

}  // namespace

Communicator::Communicator(std::unique_ptr<State> state) : state_(std::move(state)) {}

Communicator::~Communicator() {
  if (state_->home.inherited()) return;
  if (state_->recorder != nullptr) state_->recorder->close(record::Fate::dropped);
  drop_devices();
  if (state_->host != nullptr) state_->host->leave(Left::dropped);  // operations on devices may keep it alive
}

std::shared_ptr<Communicator> Communicator::create(Rank rank, int size, Bootstrap& bootstrap, Options options,
                                                   std::optional<Deadline> deadline) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw Error(Code::invalid_argument, "rank = " + std::to_string(rank) + " and size = " + std::to_string(size) +
                                            " do not satisfy 0 <= rank < size");
  }
  HashingBootstrap hashing(bootstrap);
  auto host = a2a::connect(rank, size, hashing, deadline.value_or(Deadline::after_seconds(options.timeout_seconds)));
  auto state = std::make_unique<State>(rank, size, options, std::move(host));
  state->identify(hashing.group(), "world");
  return std::shared_ptr<Communicator>(new Communicator(std::move(state)));
}

Rank Communicator::rank() const { return state_->rank; }
int Communicator::size() const { return state_->size; }
double Communicator::timeout_seconds() const { return state_->timeout_seconds; }
void Communicator::set_timeout_seconds(double seconds) { state_->timeout_seconds = seconds; }

uint64_t Communicator::last_number() const {
  std::lock_guard lock(state_->mutex);
  return state_->number;
}

void Communicator::show_call_site() noexcept {
  if (state_->home.inherited()) return;
  const std::unique_lock lock(state_->mutex, std::try_to_lock);
  if (lock && state_->status != nullptr) state_->status->show_site();
}

uint64_t Communicator::next_plan() {
  state_->home.refuse_if_inherited();
  std::lock_guard lock(state_->mutex);
  return ++state_->plans;
}

void Communicator::refuse(const Call& call, std::string_view reason) {
  Call on_host = call;
  on_host.memory = Memory::host;  // refusals go through host memory, where every rank can read them
  state_->submit(on_host, [&](Batch& batch) { batch.refusal = reason.empty() ? "no reason given" : reason; });
}

void Communicator::barrier(std::optional<Deadline> deadline) {
  Call call;
  call.op = Op::barrier;
  call.deadline = deadline;
  state_->submit(call)->wait();
}

std::vector<std::string> Communicator::allgather_bytes(std::string_view mine, Op op, std::optional<Deadline> deadline) {
  const auto ranks = static_cast<size_t>(size());
  Call call;
  call.op = op;
  call.deadline = state_->deadline(deadline);  // one budget for both exchanges
  const auto finish = [this](const std::shared_ptr<Work>& work) {
    try {
      work->wait();
    } catch (const Interrupted& error) {
      abort(error.what());  // the operation would go on, but its buffers end with this call
      throw;
    }
  };

  const int64_t length = static_cast<int64_t>(mine.size());
  auto lengths = prepare(*this, call, [&] { return std::vector<int64_t>(ranks); });
  const void* from = &length;
  void* to = lengths.data();
  const auto telling = prepare(*this, call, [&] { return Plan::allgather(rank(), size(), sizeof(length)); });
  finish(start(telling, {&from, 1}, {&to, 1}, call));

  constexpr int64_t kLongest = int64_t{1} << 30;
  for (size_t r = 0; r < ranks; ++r) {
    if (lengths[r] >= 0 && lengths[r] <= kLongest) continue;
    throw Error(Code::backend,
                "rank " + std::to_string(r) + " announces a string of " + std::to_string(lengths[r]) + " bytes");
  }
  const auto total = static_cast<size_t>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  std::string all;
  const auto bringing = prepare(*this, call, [&] {
    all.resize(total);
    const std::vector<int64_t> counts(ranks, length), displs(ranks, 0);
    return Plan::alltoallv(rank(), size(), 1, {counts, displs}, mine.size(), {lengths, {}}, total);
  });
  from = mine.data();
  to = all.data();
  finish(start(bringing, {&from, 1}, {&to, 1}, call));

  std::vector<std::string> result;
  size_t offset = 0;
  for (const int64_t bytes : lengths) {
    result.push_back(all.substr(offset, static_cast<size_t>(bytes)));
    offset += static_cast<size_t>(bytes);
  }
  return result;
}

void Communicator::abort(std::string_view reason) noexcept {
  if (state_->home.inherited()) return;
  std::shared_ptr<Transport> host;
  std::vector<std::shared_ptr<DeviceTransport>> devices;
  {
    std::lock_guard lock(state_->mutex);
    host = state_->host;
    for (const auto& [_, transport] : state_->devices) devices.push_back(transport);
  }
  for (const auto& transport : devices) transport->abort(reason);
  if (host != nullptr) host->abort(reason);
  if (state_->recorder != nullptr) state_->recorder->close(record::Fate::aborted, reason);
}

void Communicator::retire(std::string_view why) noexcept {
  if (state_->home.inherited()) return;
  std::shared_ptr<Transport> host;
  {
    std::lock_guard lock(state_->mutex);
    if (state_->host == nullptr || !state_->retired.empty()) return;
    state_->retired = why;
    host = state_->host;
  }
  drop_devices();
  host->leave(Left::replaced, why);
  if (state_->recorder != nullptr) state_->recorder->close(record::Fate::aborted, why);
}

void Communicator::close(std::optional<Deadline> deadline) {
  state_->home.refuse_if_inherited();
  if (closed()) return;
  const auto leave = [this](Left how) {
    if (state_->recorder != nullptr) {
      state_->recorder->close(how == Left::closed ? record::Fate::closed : record::Fate::dropped);
    }
    drop_devices();
    std::shared_ptr<Transport> host;
    {
      std::lock_guard lock(state_->mutex);
      host = std::exchange(state_->host, nullptr);
      state_->status = nullptr;
    }
    state_->keep_smaller(nullptr);
    if (host != nullptr) host->leave(how);
    return host;
  };
  if (state_->is_retired()) {
    leave(Left::dropped);
    return;
  }
  try {
    Call call;
    call.op = Op::close;
    call.deadline = state_->deadline(deadline);
    drain_devices(*call.deadline);
    if (!state_->open(Op::close)->broken()) {
      state_->submit(call)->wait();
      close_devices();
    }
  } catch (const Error&) {
    leave(Left::dropped);  // to the others this is a lost peer
    throw;
  }
  const std::string lost = unreceived();
  if (const auto host = leave(Left::closed)) host->await_departure(std::chrono::milliseconds(50));
  if (lost.empty()) return;
  throw Error(Code::aborted, "close: rank " + std::to_string(rank()) + ": the " + lost +
                                 " was under way, which no rank receives any more");
}

// All ranks have come to close(). A receiver may be done with a message a moment before this rank hears of it.
std::string Communicator::unreceived() {
  const auto host = state_->open(Op::close);
  std::string lost = host->unreceived();
  const Deadline patience = Deadline::after_seconds(0.2);
  while (!lost.empty() && !patience.passed()) {
    ::sched_yield();
    lost = host->unreceived();
  }
  return lost;
}

bool Communicator::closed() const {
  if (state_->home.inherited()) return true;
  std::lock_guard lock(state_->mutex);
  return state_->host == nullptr;
}

bool Communicator::broken() const {
  if (state_->home.inherited()) return true;
  std::shared_ptr<Transport> host;
  {
    std::lock_guard lock(state_->mutex);
    host = state_->host;
  }
  return host != nullptr && (state_->is_retired() || host->broken() || host->peer_died());
}

bool Communicator::failed() const {
  if (state_->home.inherited()) return true;
  std::lock_guard lock(state_->mutex);
  return state_->host != nullptr && state_->host->failed();
}

std::shared_ptr<const void> Communicator::connections() const { return state_->open(Op::barrier)->connections(); }
HostFacts Communicator::host_facts() const { return state_->open(Op::barrier)->facts(); }

std::vector<WayOfBytes> Communicator::host_ways(size_t bytes) const { return state_->open(Op::barrier)->ways(bytes); }

}  // namespace a2a
