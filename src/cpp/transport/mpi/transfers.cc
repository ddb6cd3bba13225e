// Transfers of memory between this process and another one.
//
// MPI puts bytes that arrive before their receive is posted into memory of its own, and copies them later. Large runs
// need new memory each time, which the kernel has to clear; that was measured slower (benchmarks/notes/hosts.md). So
// large transfers are a rendezvous: the receiver says when its receive is posted, by an empty message, and the sender
// waits for that. Smaller transfers do not wait, and would overtake large ones of the same tag.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "transport/mpi/mpi_network.h"

namespace a2a::mpi {
namespace {

// The tags of a transfer. Messages have the tag 0.
int memory_tag(uint32_t tag) { return static_cast<int>(2 * tag); }
int ready_tag(uint32_t tag) { return static_cast<int>(2 * tag + 1); }

}  // namespace

// The runs of a transfer, in as many pieces as MPI's counts need. Pieces of one tag arrive in order.
class Pieces : public Transfer, public Watcher {
 public:
  Pieces(std::shared_ptr<MpiNetwork> network, Process peer, uint32_t tag, std::span<const Run> runs)
      : network_(std::move(network)), peer_(peer), tag_(tag), runs_(runs) {}

 protected:
  Library& library() { return *network_->library_; }

  void begin(Handle request) {
    ++left_;
    library().watch(request, this);
  }

  template <class Begin>
  void begin_pieces(Begin&& begin_piece) {
    for (const Run& run : runs_) {
      for (size_t done = 0; done < run.bytes; done += kMostBytes) {
        begin(begin_piece(run.data + done, std::min(kMostBytes, run.bytes - done)));
      }
    }
  }

  // Whether the transfer is a rendezvous. Both ends decide alike. For fewer bytes, the wait costs more than the copy.
  bool awaited() const {
    const auto longer = [](size_t sum, const Run& run) { return sum + run.bytes; };
    return std::accumulate(runs_.begin(), runs_.end(), size_t{0}, longer) >= MpiNetwork::kLarge;
  }

  void completed(const Error* error) override {
    if (error != nullptr && !error_) error_ = *error;
    --left_;
  }

  bool all_gone() const { return left_ == 0; }
  // Throws the error of the transfer, once.
  bool all_done() {
    if (!all_gone()) return false;
    if (error_) throw *std::exchange(error_, std::nullopt);
    return true;
  }

  void cancel() noexcept {
    if (std::exchange(cancelled_, true) || network_->ended_) return;
    try {
      library().cancel(this);
    } catch (const Error&) {  // MPI keeps the request
    }
  }

  // Call last, before destruction.
  void unwatch() noexcept {
    if (all_gone()) return;
    const std::lock_guard lock(network_->mutex_);
    library().unwatch(this);
  }

  const std::shared_ptr<MpiNetwork> network_;
  const Process peer_;
  const uint32_t tag_;
  const std::span<const Run> runs_;
  bool cancelled_ = false;
  std::optional<Error> error_;     // written before `left_` reaches 0
  std::atomic<unsigned> left_{0};  // requests at MPI: pieces, and the receiver's ready message
};

class Sending final : public Pieces {
 public:
  using Pieces::Pieces;
  ~Sending() override {
    abandon();
    unwatch();
  }

  void start() {
    if (!awaited()) return send();
    begin(library().start_receive(nullptr, 0, peer_, ready_tag(tag_)));
    waits_ = true;
  }

  void completed(const Error* error) override {
    std::optional<Error> failure;
    try {
      if (std::exchange(waits_, false) && !cancelled_ && error == nullptr) send();
    } catch (const Error& of_send) {  // an error of this transfer only
      failure = of_send;
    }
    Pieces::completed(failure ? &*failure : error);
  }

  bool done() override {
    if (all_done()) return true;
    const std::lock_guard lock(network_->mutex_);
    return network_->ended_ && (waits_ || library().finalised());  // until then MPI may use the memory
  }

  void withdraw() noexcept override { abandon(); }

  void abandon() noexcept override {
    if (all_gone()) return;
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

  void expect_nothing() noexcept override {
    if (waits_) cancel();
  }

  bool waits_ = false;
};

class Receiving final : public Pieces {
 public:
  using Pieces::Pieces;
  ~Receiving() override {
    abandon();
    unwatch();
  }

  void start() {
    begin_pieces(
        [&](std::byte* data, size_t bytes) { return library().start_receive(data, bytes, peer_, memory_tag(tag_)); });
    if (awaited()) send_ready();
  }

  bool done() override {
    if (all_done()) return true;
    const std::lock_guard lock(network_->mutex_);
    return network_->ended_ && library().finalised();
  }

  // Counts the ready message, which the sender finds when it next sends with this tag.
  void withdraw() noexcept override {
    abandon();
    if (!awaited()) return;
    const std::lock_guard lock(network_->mutex_);
    ++network_->unused_ready_[{peer_, tag_}];
  }

  void abandon() noexcept override {
    if (all_gone()) return;
    const std::lock_guard lock(network_->mutex_);
    cancel();
  }

 private:
  void expect_nothing() noexcept override { cancel(); }

  void send_ready() {
    const auto told = network_->unused_ready_.find({peer_, tag_});
    if (told == network_->unused_ready_.end()) return network_->start_post(peer_, {}, ready_tag(tag_));
    if (--told->second == 0) network_->unused_ready_.erase(told);
  }
};

// Receives the bytes into memory of its own: MPI cannot discard a message.
class Discarded final : public Transfer {
 public:
  Discarded(MpiNetwork& network, Process from, uint32_t tag, size_t bytes)
      : memory_(std::make_unique_for_overwrite<std::byte[]>(bytes)),
        run_{0, memory_.get(), bytes},
        transfer_(network.receive(from, tag, {&run_, 1})) {}
  ~Discarded() override {
    try {
      if (done()) return;
    } catch (const Error&) {  // the state of the receive is unknown
    }
    (void)memory_.release();  // MPI may still use it
  }

  bool done() override { return transfer_->done(); }
  void abandon() noexcept override { transfer_->abandon(); }
  void withdraw() noexcept override { transfer_->withdraw(); }

 private:
  std::unique_ptr<std::byte[]> memory_;
  const Run run_;
  std::unique_ptr<Transfer> transfer_;
};

std::unique_ptr<Transfer> MpiNetwork::send(Process to, uint32_t tag, std::span<const Run> runs) {
  auto sending = std::make_unique<Sending>(shared_from_this(), to, tag, runs);
  const std::lock_guard lock(mutex_);
  refuse_if_ended();
  sending->start();
  return sending;
}

std::unique_ptr<Transfer> MpiNetwork::receive(Process from, uint32_t tag, std::span<const Run> runs) {
  auto receiving = std::make_unique<Receiving>(shared_from_this(), from, tag, runs);
  const std::lock_guard lock(mutex_);
  refuse_if_ended();
  receiving->start();
  return receiving;
}

void MpiNetwork::advance() {
  const std::lock_guard lock(mutex_);
  if (!ended_) library_->look();
}

std::unique_ptr<Transfer> MpiNetwork::discard(Process from, uint32_t tag, size_t bytes) {
  return std::make_unique<Discarded>(*this, from, tag, bytes);
}

}  // namespace a2a::mpi
