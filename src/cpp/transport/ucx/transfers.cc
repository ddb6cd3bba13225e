// Transfers of memory. Large ones are a rendezvous: the receiver says when its receive is posted, by an empty message,
// and the sender waits for that. UCX has a rendezvous of its own, but a send that has begun it cannot be taken back,
// and its memory would be UCX's until the receiver comes.
#include <numeric>

#include "transport/ucx/ucx_network.h"

namespace a2a::ucx {

// One transfer. All members require the mutex of the network, or run inside a call of its worker.
class Flight : public Request {
 public:
  Flight(UcxNetwork& network, Process peer, uint32_t tag, std::span<const Run> runs)
      : network_(network), peer_(peer), tag_(tag) {
    for (const Run& run : runs) {
      if (run.bytes != 0) runs_.push_back({run.data, run.bytes});
      bytes_ += run.bytes;
    }
  }

  bool gone() const { return !in_flight_; }
  bool done() {
    if (in_flight_) return false;
    if (status_ == kOk || abandoned_) return true;
    // A connection that fails ends its transfers, too. lost() tells.
    if (network_.peer(peer_).loss || network_.peer(peer_).state == UcxNetwork::State::left) return false;
    abandoned_ = true;
    throw Error(Code::backend, network_.name_ + ": a transfer has failed: " + library().status_string(status_));
  }
  virtual void abandon() noexcept { abandoned_ = true; }
  virtual void withdraw() noexcept { abandon(); }

 protected:
  bool awaited() const { return bytes_ >= UcxNetwork::kLarge; }

  UcxNetwork& network_;
  const Process peer_;
  const uint32_t tag_;
  std::vector<Iov> runs_;
  size_t bytes_ = 0;
  bool in_flight_ = false, abandoned_ = false;
  Status status_ = kOk;
};

class Sending final : public Flight {
 public:
  using Flight::Flight;

  void start() {
    in_flight_ = true;
    if (!awaited()) return send();
    waits_ = true;
    network_.worker_->receive(network_.tag_from(peer_, Kind::ready, tag_), {}, shared_from_this());
  }

  void completed(Status status) override {
    if (std::exchange(waits_, false) && status == kOk && !abandoned_) return send();
    in_flight_ = false;
    status_ = status;
    if (status == kOk) network_.moved_.fetch_add(bytes_, std::memory_order_relaxed);
  }

  void abandon() noexcept override {
    Flight::abandon();
    if (waits_) network_.worker_->cancel(*this);
  }

 private:
  void send() {
    ++network_.sent_;
    if (!network_.reachable(peer_)) return completed(kCanceled);
    network_.worker_->send(network_.peer(peer_).endpoint, network_.tag_to(peer_, Kind::memory, tag_), runs_,
                           shared_from_this());
  }

  bool waits_ = false;
};

class Receiving final : public Flight {
 public:
  using Flight::Flight;

  void start() {
    in_flight_ = true;
    network_.worker_->receive(network_.tag_from(peer_, Kind::memory, tag_), runs_, shared_from_this());
    if (awaited()) say_ready();
  }

  void completed(Status status) override {
    in_flight_ = false;
    status_ = status;
    if (status == kOk) network_.moved_.fetch_add(bytes_, std::memory_order_relaxed);
  }

  void abandon() noexcept override {
    Flight::abandon();
    network_.worker_->cancel(*this);
  }

  // Counts the ready message, which the sender finds when it next sends with this tag.
  void withdraw() noexcept override {
    abandon();
    if (awaited()) ++network_.unused_ready_[{peer_, tag_}];
  }

 private:
  void say_ready() {
    const auto told = network_.unused_ready_.find({peer_, tag_});
    if (told == network_.unused_ready_.end()) return network_.start_post(peer_, {}, Kind::ready, tag_);
    if (--told->second == 0) network_.unused_ready_.erase(told);
  }
};

class UcxTransfer final : public Transfer {
 public:
  UcxTransfer(std::shared_ptr<UcxNetwork> network, std::shared_ptr<Flight> flight,
              std::unique_ptr<std::byte[]> memory = {})
      : network_(std::move(network)), flight_(std::move(flight)), memory_(std::move(memory)) {}

  ~UcxTransfer() override {
    abandon();
    if (!flight_->gone()) (void)memory_.release();  // UCX may still use it
  }

  bool done() override {
    const std::lock_guard lock(network_->mutex_);
    return flight_->done();
  }
  void abandon() noexcept override {
    if (network_->home_.inherited()) return;  // a forked child; the mutex may be held for ever
    const std::lock_guard lock(network_->mutex_);
    if (!flight_->gone()) flight_->abandon();
  }
  void withdraw() noexcept override {
    if (network_->home_.inherited()) return;
    const std::lock_guard lock(network_->mutex_);
    flight_->withdraw();
  }

 private:
  const std::shared_ptr<UcxNetwork> network_;
  const std::shared_ptr<Flight> flight_;
  std::unique_ptr<std::byte[]> memory_;  // of a receive whose bytes are discarded
};

std::unique_ptr<Transfer> UcxNetwork::send(Process to, uint32_t tag, std::span<const Run> runs) {
  const std::lock_guard lock(mutex_);
  auto sending = std::make_shared<Sending>(*this, to, tag, runs);
  sending->start();
  return std::make_unique<UcxTransfer>(shared_from_this(), std::move(sending));
}

std::unique_ptr<Transfer> UcxNetwork::receive(Process from, uint32_t tag, std::span<const Run> runs) {
  const std::lock_guard lock(mutex_);
  auto receiving = std::make_shared<Receiving>(*this, from, tag, runs);
  receiving->start();
  return std::make_unique<UcxTransfer>(shared_from_this(), std::move(receiving));
}

std::unique_ptr<Transfer> UcxNetwork::discard(Process from, uint32_t tag, size_t bytes) {
  auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
  const Run run{0, memory.get(), bytes};
  const std::lock_guard lock(mutex_);
  auto receiving = std::make_shared<Receiving>(*this, from, tag, std::span{&run, 1});
  receiving->start();
  return std::make_unique<UcxTransfer>(shared_from_this(), std::move(receiving), std::move(memory));
}

}  // namespace a2a::ucx
