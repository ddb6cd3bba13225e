// How the ranks of a communicator find each other.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "engine/link.h"

namespace fake {
namespace {

// Lower ranks are connected to, higher ranks are accepted: nobody waits for somebody who waits for it.
class Meeting {
 public:
  Meeting(const std::string& name, int rank, int size, double seconds, const std::function<bool()>& stop)
      : name_(name), rank_(rank), size_(size), stop_(stop) {
    deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  ~Meeting() {
    if (listener_ >= 0) close_tracked(listener_);
  }

  Failure listen_() {
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener_ < 0) return {Failure::misuse, "no socket to listen on"};
    track(listener_);
    const auto [address, bytes] = address_of(rank_);
    if (bind(listener_, reinterpret_cast<const sockaddr*>(&address), bytes) != 0) {
      return {Failure::misuse, "rank " + std::to_string(rank_) + " has already checked in"};
    }
    return listen(listener_, 1024) == 0 ? Failure{} : Failure{Failure::misuse, "cannot listen"};
  }

  // A connected socket, or -1 when the time is over.
  int connect_to(int peer) {
    const auto [address, bytes] = address_of(peer);
    while (!over()) {
      const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (descriptor >= 0 && ::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), bytes) == 0) {
        return descriptor;
      }
      if (descriptor >= 0) ::close(descriptor);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return -1;
  }

  int accept_one() {
    while (!over()) {
      pollfd waiting{listener_, POLLIN, 0};
      if (poll(&waiting, 1, 10) <= 0) continue;
      const int descriptor = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (descriptor >= 0) return descriptor;
    }
    return -1;
  }

  bool readable(int descriptor) {
    pollfd waiting{descriptor, POLLIN, 0};
    while (!over()) {
      if (poll(&waiting, 1, 10) > 0) return true;
    }
    return false;
  }

  Failure too_late(const std::string& who) const {
    if (stop_()) return {Failure::aborted, "aborted while the ranks were meeting"};
    return {Failure::timeout, who + " did not connect to rank " + std::to_string(rank_) + " in time"};
  }

  Failure sizes(int peer, uint64_t theirs) const {
    if (theirs == static_cast<uint64_t>(size_)) return {};
    return {Failure::mismatch, "rank " + std::to_string(rank_) + " says there are " + std::to_string(size_) +
                                   " ranks, rank " + std::to_string(peer) + " says " + std::to_string(theirs)};
  }

 private:
  bool over() const { return stop_() || Clock::now() > deadline_; }

  std::pair<sockaddr_un, socklen_t> address_of(int peer) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    // The zero byte in front makes it abstract; the name may be too long for an address.
    const auto name = static_cast<unsigned long>(hash(name_.data(), name_.size()));
    const int length = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "a2a-fake/%016lx/%d", name, peer);
    return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length))};
  }

  const std::string name_;
  const int rank_, size_;
  const std::function<bool()>& stop_;
  Clock::time_point deadline_;
  int listener_ = -1;
};

}  // namespace

Failure Mesh::connect(const std::string& name, int rank, int size, double seconds, const std::function<bool()>& stop,
                      std::shared_ptr<Mesh>& made) {
  const std::shared_ptr<Mesh> mesh(new Mesh(rank, size));
  Meeting meeting(name, rank, size, seconds, stop);
  if (Failure failure = meeting.listen_()) return failure;
  Frame mine{Frame::hello, 0, {}};
  mine.header.kind = static_cast<uint32_t>(rank);
  mine.header.count = static_cast<uint64_t>(size);
  Frame theirs;
  for (int peer = 0; peer < rank; ++peer) {
    const int descriptor = meeting.connect_to(peer);
    if (descriptor < 0) return meeting.too_late("rank " + std::to_string(peer));
    auto link = std::make_unique<Link>(descriptor, peer);
    if (!link->write(mine) || !meeting.readable(descriptor) || !link->read(&theirs, sizeof theirs)) {
      return meeting.too_late("rank " + std::to_string(peer));
    }
    if (Failure failure = meeting.sizes(peer, theirs.header.count)) return failure;
    mesh->links_[static_cast<size_t>(peer)] = std::move(link);
  }
  for (int missing = size - 1 - rank; missing > 0; --missing) {
    const int descriptor = meeting.accept_one();
    if (descriptor < 0) return meeting.too_late(std::to_string(missing) + " higher rank(s)");
    auto link = std::make_unique<Link>(descriptor, -1);
    if (!meeting.readable(descriptor) || !link->read(&theirs, sizeof theirs)) return meeting.too_late("somebody");
    link->write(mine);
    const auto peer = static_cast<int>(theirs.header.kind);
    if (Failure failure = meeting.sizes(peer, theirs.header.count)) return failure;
    if (theirs.type != Frame::hello || peer <= rank || peer >= size) return {Failure::misuse, "a stranger connected"};
    link->peer = peer;
    mesh->links_[static_cast<size_t>(peer)] = std::move(link);
  }
  std::thread([mesh] { mesh->read(); }).detach();
  made = mesh;
  return {};
}

}  // namespace fake
