// Runs of memory between this process and another one.
//
// What arrives before there is a receive MPI puts into memory of its own, and copies it later. Of large runs that is
// new memory, which the kernel has to clear each time: half of what ranks sent each other came so, and took up to a
// third more time (docs/performance.md). So of those the receiver says when it is ready, by an empty message, and the
// sender waits for that.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "transport/mpi/mpi_network.h"

namespace a2a::mpi {
namespace {

// Below that the wait costs more than the copy.
constexpr size_t kAwaited = size_t{256} << 10;

// Those of messages are 0.
int memory_tag(uint32_t tag) { return static_cast<int>(2 * tag); }
int ready_tag(uint32_t tag) { return static_cast<int>(2 * tag + 1); }

}  // namespace

// One run, in as many pieces as MPI's counts ask for. Pieces of one tag arrive in their order.
class Pieces : public Transfer {
 public:
  Pieces(std::shared_ptr<MpiNetwork> network, Endpoint peer, uint32_t tag, std::byte* data, size_t bytes)
      : network_(std::move(network)), peer_(peer), tag_(tag), data_(data), bytes_(bytes) {}

 protected:
  Library& library() { return *network_->library_; }

  void begin(Handle request) {
    requests_.push_back(request);
    ++network_->unfinished_;
  }

  template <class Begin>
  void begin_pieces(Begin&& begin_piece) {
    for (size_t done = 0; done < bytes_; done += kMostBytes) {
      begin(begin_piece(data_ + done, std::min(kMostBytes, bytes_ - done)));
    }
  }

  bool all_done() {
    while (!requests_.empty() && library().test(&requests_.back())) {
      requests_.pop_back();
      --network_->unfinished_;
    }
    return requests_.empty();
  }

  void cancel() noexcept {
    if (std::exchange(cancelled_, true) || network_->ended_) return;
    try {
      for (const Handle request : requests_) library().cancel(request);
    } catch (const Error&) {  // it stays with MPI then
    }
  }

  const std::shared_ptr<MpiNetwork> network_;
  const Endpoint peer_;
  const uint32_t tag_;
  std::byte* const data_;
  const size_t bytes_;
  std::vector<Handle> requests_;
  bool cancelled_ = false;
};

class Sending final : public Pieces {
 public:
  using Pieces::Pieces;
  ~Sending() override {
    abandon();
    const std::lock_guard lock(network_->mutex_);
    std::erase(network_->waiting_, this);
  }

  void start() {
    if (bytes_ < kAwaited) return send();
    begin(library().start_receive(nullptr, 0, peer_, ready_tag(tag_)));
    waits_ = true;
    network_->waiting_.push_back(this);
  }

  // Of one that waits. Returns whether it does no longer.
  bool start_if_ready() {
    if (!all_done()) return false;
    waits_ = false;
    if (!cancelled_) send();
    return true;
  }

  bool done() override {
    const std::lock_guard lock(network_->mutex_);
    if (network_->ended_) return waits_ || library().finalised();  // until then MPI may use the memory
    network_->start_awaited();
    return !waits_ && all_done();
  }

  void withdraw() noexcept override { abandon(); }

  void abandon() noexcept override {
    const std::lock_guard lock(network_->mutex_);
    if (waits_) cancel();
  }

 private:
  void send() {
    begin_pieces([&](const std::byte* data, size_t bytes) {
      ++network_->sent_;
      return library().start_send(data, bytes, peer_, memory_tag(tag_));
    });
  }

  bool waits_ = false;
};

class Receiving final : public Pieces {
 public:
  using Pieces::Pieces;
  ~Receiving() override { abandon(); }

  void start() {
    begin_pieces(
        [&](std::byte* data, size_t bytes) { return library().start_receive(data, bytes, peer_, memory_tag(tag_)); });
    if (bytes_ >= kAwaited) tell_sender();
  }

  bool done() override {
    const std::lock_guard lock(network_->mutex_);
    if (network_->ended_) return library().finalised();
    network_->start_awaited();
    return all_done();
  }

  // The sender was told, and will find that when it sends something with this tag another time.
  void withdraw() noexcept override {
    abandon();
    if (bytes_ < kAwaited) return;
    const std::lock_guard lock(network_->mutex_);
    ++network_->needlessly_[{peer_, tag_}];
  }

  void abandon() noexcept override {
    const std::lock_guard lock(network_->mutex_);
    cancel();
  }

 private:
  void tell_sender() {
    const auto told = network_->needlessly_.find({peer_, tag_});
    if (told == network_->needlessly_.end()) return network_->start_post(peer_, {}, ready_tag(tag_));
    if (--told->second == 0) network_->needlessly_.erase(told);
  }
};

// MPI knows no other way than to receive it.
class Discarded final : public Transfer {
 public:
  Discarded(MpiNetwork& network, Endpoint from, uint32_t tag, size_t bytes)
      : memory_(std::make_unique_for_overwrite<std::byte[]>(bytes)),
        transfer_(network.receive(from, tag, memory_.get(), bytes)) {}
  ~Discarded() override {
    try {
      if (done()) return;
    } catch (const Error&) {  // nobody knows then what MPI does with it
    }
    (void)memory_.release();  // it stays with MPI
  }

  bool done() override { return transfer_->done(); }
  void abandon() noexcept override { transfer_->abandon(); }
  void withdraw() noexcept override { transfer_->withdraw(); }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::unique_ptr<Transfer> transfer_;
};

void MpiNetwork::start_awaited() {
  for (size_t i = 0; i < waiting_.size();) {
    if (waiting_[i]->start_if_ready()) {
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

std::unique_ptr<Transfer> MpiNetwork::send(Endpoint to, uint32_t tag, const std::byte* data, size_t bytes) {
  // A transfer has one pointer for both directions; of what is sent nothing is written.
  auto sending = std::make_unique<Sending>(shared_from_this(), to, tag, const_cast<std::byte*>(data), bytes);
  const std::lock_guard lock(mutex_);
  refuse_if_ended();
  sending->start();
  return sending;
}

std::unique_ptr<Transfer> MpiNetwork::receive(Endpoint from, uint32_t tag, std::byte* data, size_t bytes) {
  auto receiving = std::make_unique<Receiving>(shared_from_this(), from, tag, data, bytes);
  const std::lock_guard lock(mutex_);
  refuse_if_ended();
  receiving->start();
  return receiving;
}

std::unique_ptr<Transfer> MpiNetwork::discard(Endpoint from, uint32_t tag, size_t bytes) {
  return std::make_unique<Discarded>(*this, from, tag, bytes);
}

}  // namespace a2a::mpi
