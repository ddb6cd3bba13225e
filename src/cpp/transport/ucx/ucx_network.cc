#include "transport/ucx/ucx_network.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace a2a::ucx {
namespace {

constexpr size_t kMostMessage = size_t{1} << 30;
constexpr uint64_t kKeys = (uint64_t{1} << 30) - 1;
constexpr std::string_view kGoodbye = "a2a leaves";

uint64_t key_of(const Digest& key, Process from, Process to) {
  const Digest digest = hmac_sha256(as_text(key), "tags of " + std::to_string(from) + " to " + std::to_string(to));
  uint64_t number = 0;
  std::memcpy(&number, digest.data(), sizeof(number));
  return number & kKeys;
}

std::string proof_of(const Digest& key, Process from, Process to) {
  return std::string(
      as_text(hmac_sha256(as_text(key), "proof of " + std::to_string(from) + " to " + std::to_string(to))));
}

}  // namespace

std::string settings() {
  std::string text;
  for (const char* const name : {"UCX_TLS", "UCX_NET_DEVICES"}) {
    if (const char* const value = std::getenv(name)) text += std::string("; ") + name + "=" + value + " is set";
  }
  return text;
}

// A message on its way out.
class UcxNetwork::Posted final : public Request {
 public:
  Posted(UcxNetwork& network, std::string bytes) : network_(network), bytes_(std::move(bytes)) {
    run_ = {bytes_.data(), bytes_.size()};
    ++network_.posted_;
  }
  std::span<const Iov> runs() const { return {&run_, 1}; }
  void completed(Status) override { --network_.posted_; }  // lost() tells of a failure

 private:
  UcxNetwork& network_;
  std::string bytes_;
  Iov run_;
};

// A message on its way in. Without a sender it is discarded.
class UcxNetwork::Arriving final : public Request {
 public:
  Arriving(UcxNetwork& network, std::optional<Process> from, size_t bytes)
      : network_(network), from_(from), bytes_(from ? bytes : 0, '\0') {}
  void* data() { return from_ ? bytes_.data() : nullptr; }
  void completed(Status status) override {
    if (status == kOk && from_) network_.deliver(*from_, std::move(bytes_));
  }

 private:
  UcxNetwork& network_;
  const std::optional<Process> from_;
  std::string bytes_;
};

UcxNetwork::UcxNetwork(Process self, std::unique_ptr<TagWorker> worker)
    : self_(self), worker_(std::move(worker)), name_(library().name) {}

UcxNetwork::~UcxNetwork() {
  if (home_.inherited()) {
    (void)worker_.release();  // the parent's
    return;
  }
  const std::lock_guard lock(mutex_);
  say_goodbye();
  for (Peer& one : peers_) {
    if (one.endpoint != nullptr) worker_->close(std::exchange(one.endpoint, nullptr));
  }
  while (const auto left = worker_->probe(0, 0)) {  // UCX would warn of it
    worker_->receive(nullptr, *left, std::make_shared<Arriving>(*this, std::nullopt, 0));
  }
  worker_.reset();
}

// ---- the beginning and the end --------------------------------------------------------------------------------------

void UcxNetwork::join(const std::vector<std::string>& addresses, const Digest& key) {
  const std::lock_guard lock(mutex_);
  peers_.resize(addresses.size());
  for (Process process = 0; process < size(); ++process) {
    Peer& one = peer(process);
    one.network = this;
    one.process = process;
    one.key_to = key_of(key, self_, process);
    one.key_from = key_of(key, process, self_);
    one.proof_to = proof_of(key, self_, process);
    one.proof_from = proof_of(key, process, self_);
    if (process == self_) {
      one.state = State::here;
      continue;
    }
    if (!senders_.emplace(one.key_from, process).second) throw Error(Code::backend, "two processes have one key");
  }
  for (Peer& one : peers_) {
    if (one.process == self_) continue;
    try {
      one.endpoint = worker_->connect(addresses[static_cast<size_t>(one.process)], failed, &one);
    } catch (const Error& error) {
      throw Error(error.code(), "rank " + std::to_string(self_) + " cannot reach rank " + std::to_string(one.process) +
                                    ": " + error.what());
    }
    start_post(one.process, one.proof_to);
  }
}

bool UcxNetwork::joined() {
  const std::lock_guard lock(mutex_);
  progress();
  for (const Peer& one : peers_) {
    if (one.loss)
      throw Error(Code::peer_lost,
                  "rank " + std::to_string(one.process) + " cannot be reached: " + one.loss->how + settings());
  }
  if (std::ranges::any_of(peers_, [](const Peer& one) { return one.state == State::unproven; })) return false;
  for (const Peer& one : peers_) {
    if (one.endpoint == nullptr) continue;
    const std::string devices = worker_->devices(one.endpoint);
    if (!devices.empty()) name_ = library().name + " on " + devices;
    break;
  }
  return posted_ == 0;
}

std::vector<Process> UcxNetwork::missing() {
  const std::lock_guard lock(mutex_);
  std::vector<Process> processes;
  for (const Peer& one : peers_) {
    if (one.state == State::unproven) processes.push_back(one.process);
  }
  return processes;
}

// Tells the others that this process leaves, and is not dead; for a short while, because they may not listen.
void UcxNetwork::say_goodbye() noexcept {
  constexpr auto kPatience = std::chrono::milliseconds(500);
  try {
    for (const Peer& one : peers_) {
      if (reachable(one.process) && one.state == State::here) start_post(one.process, std::string(kGoodbye));
    }
    const auto until = Deadline::at(Deadline::Clock::now() + kPatience);
    while (posted_ != 0 && !until.passed()) progress();
  } catch (const std::exception&) {  // to them this process is dead
  }
}

void UcxNetwork::failed(void* argument, Endpoint*, Status status) {
  Peer& one = *static_cast<Peer*>(argument);
  if (one.state == State::left || one.loss) return;
  one.loss =
      hosts::Loss{Deadline::Clock::now(), std::string("its connection has failed: ") + library().status_string(status)};
}

// ---- progress -------------------------------------------------------------------------------------------------------

void UcxNetwork::advance() {
  const std::lock_guard lock(mutex_);
  progress();
}

int UcxNetwork::events() {
  const std::lock_guard lock(mutex_);
  return worker_->arm();
}

void UcxNetwork::progress() {
  worker_->progress();
  receive_messages();
}

void UcxNetwork::receive_messages() {
  while (const auto arrival = worker_->probe(tag_of(0, Kind::message, 0), tag_of(0, Kind{3}, 0))) {
    const auto sender = senders_.find(arrival->tag >> 34);
    const bool known = sender != senders_.end() && arrival->bytes <= kMostMessage;
    const auto arriving =
        std::make_shared<Arriving>(*this, known ? std::optional(sender->second) : std::nullopt, arrival->bytes);
    worker_->receive(arriving->data(), *arrival, arriving);
  }
}

void UcxNetwork::deliver(Process from, std::string bytes) {
  Peer& sender = peer(from);
  if (sender.state == State::unproven) {
    if (bytes == sender.proof_from) sender.state = State::here;
    return;
  }
  if (bytes == kGoodbye) {
    sender.state = State::left;
    return;
  }
  inbox_.deliver({from, std::move(bytes)});
}

// ---- messages -------------------------------------------------------------------------------------------------------

void UcxNetwork::post(Process to, std::string bytes) {
  if (bytes.size() > kMostMessage) throw Error(Code::backend, "a message of more than 1 GiB");
  const std::lock_guard lock(mutex_);
  if (to == self_) return deliver(self_, std::move(bytes));
  ++sent_;
  start_post(to, std::move(bytes));
}

void UcxNetwork::start_post(Process to, std::string bytes, Kind kind, uint32_t tag) {
  if (!reachable(to)) return;  // lost() tells
  const auto posted = std::make_shared<Posted>(*this, std::move(bytes));
  worker_->send(peer(to).endpoint, tag_to(to, kind, tag), posted->runs(), posted);
}

std::optional<Message> UcxNetwork::take(uint64_t channel) {
  const std::lock_guard lock(mutex_);
  auto message = inbox_.take(channel);
  if (message) return message;
  progress();
  return inbox_.take(channel);
}

bool UcxNetwork::flushed() {
  const std::lock_guard lock(mutex_);
  if (posted_ != 0) progress();
  return posted_ == 0;
}

std::optional<hosts::Loss> UcxNetwork::lost(Process process) {
  const std::lock_guard lock(mutex_);
  if (process == self_) return std::nullopt;
  if (inbox_.overrun(process)) return hosts::Loss{{}, "it sent more messages than anybody here takes"};
  if (peer(process).loss) receive_messages();  // what came before it
  return peer(process).loss;
}

void UcxNetwork::close(uint64_t channel) noexcept {
  const std::lock_guard lock(mutex_);
  inbox_.close(channel);
}

uint64_t UcxNetwork::sent() const {
  const std::lock_guard lock(mutex_);
  return sent_;
}

uint32_t UcxNetwork::next_tag(Process to) {
  const std::lock_guard lock(mutex_);
  return ++peer(to).tag;
}

bool UcxNetwork::fresh(Process to, uint32_t tag) const {
  const std::lock_guard lock(mutex_);
  return peers_[static_cast<size_t>(to)].tag - tag < UINT32_MAX / 2;
}

}  // namespace a2a::ucx
