// The side of the ranks that connect to rank 0.
#include <poll.h>
#include <unistd.h>

#include "a2a/work.h"
#include "bootstrap/ended_ranks.h"
#include "bootstrap/tcp/tcp_socket.h"
#include "bootstrap/unix/packet.h"
#include "bootstrap/user.h"
#include "runtime/process.h"

namespace a2a::local {
namespace {

class Spoke final : public Bootstrap {
 public:
  Spoke(Rank rank, int size, const std::string& job, Deadline deadline) : rank_(rank), size_(size), job_(job) {
    const UnixAddress address = address_of(job);
    while (!join(address, deadline)) {
      if (deadline.passed()) throw error(Code::timeout, me() + " timed out waiting for rank 0");
      require_all_running(job, size);
      poll_slice({}, Deadline::after_seconds(0.003));
    }
  }

  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) override {
    check_string(mine, rank_);
    return with_leave_sent([&] {
      while (send(socket_.fd(), {.kind = Header::data, .rank = rank_}, mine) == Sent::not_yet) {
        if (!await(socket_.fd(), POLLOUT, deadline)) throw late();
      }
      const size_t most = static_cast<size_t>(size_) * (kLargestString + sizeof(uint64_t));
      std::string table;
      for (bool last = false; !last;) {
        const auto packet = next(deadline);  // even if sending failed, rank 0 may have sent a refusal
        if (!packet || packet->header.kind != Header::data || table.size() > most) throw lost();
        table += packet->text;
        last = packet->header.size == 1;
      }
      auto strings = wire::unpack_strings(table, static_cast<size_t>(size_));
      if (!strings) throw lost();
      return std::move(*strings);
    });
  }

 private:
  Error error(Code code, const std::string& what) const { return {code, "job '" + job_ + "': " + what}; }
  Error lost() const { return error(Code::peer_lost, "rank 0 was lost while the ranks met"); }
  std::string me() const { return "rank " + std::to_string(rank_); }

  // Tries to join. Returns whether rank 0 has welcomed this rank. Rank 0 may not be there yet, or be leaving an earlier
  // meeting of the same name.
  bool join(const UnixAddress& address, Deadline deadline) {
    socket_ = new_socket();
    if (!connect_soon(socket_.fd(), address.get(), address.length)) return false;
    if (!same_user(socket_.fd())) throw error(Code::unsupported, "a process of another user holds this job's name");
    return with_leave_sent([&] {
      const Header hello{.kind = Header::hello, .rank = rank_, .size = size_, .pid = ::getpid()};
      send(socket_.fd(), hello);  // even if that fails, rank 0 may have sent a refusal
      const auto packet = next(deadline);
      return packet && packet->header.kind == Header::welcome;
    });
  }

  // Runs body(). If that is interrupted, sends rank 0 a leave, so that it neither waits for this rank nor counts it as
  // lost.
  template <class Body>
  auto with_leave_sent(Body&& body) -> decltype(body()) {
    try {
      return body();
    } catch (const Interrupted& interrupted) {
      leave(interrupted.code());
      throw;
    }
  }

  void leave(Code why) {
    send(socket_.fd(), {.kind = Header::leave, .rank = rank_, .size = static_cast<int32_t>(why)});
  }

  // Returns the next packet from rank 0; nullopt when it is gone. Throws the error of a refusal, and when the deadline
  // passes.
  std::optional<Packet> next(Deadline deadline) {
    std::optional<Packet> packet;
    while (receive(socket_.fd(), packet) && !packet) {
      if (!await(socket_.fd(), POLLIN, deadline)) throw late();
    }
    if (packet && packet->header.kind == Header::refusal) throw refusal(*packet);
    return packet;
  }

  static Error refusal(const Packet& packet) { return {code_of(packet.header), packet.text}; }

  // Returns the error of a passed deadline: rank 0's, which names the missing ranks, if that comes soon.
  Error late() {
    leave(Code::timeout);
    const Deadline until = Deadline::after_seconds(kGraceMilliseconds / 1000.0);
    pollfd fd{socket_.fd(), POLLIN, 0};
    std::optional<Packet> packet;
    while (::poll(&fd, 1, slice(until)) >= 0 && receive(socket_.fd(), packet) && !until.passed()) {
      if (packet && packet->header.kind == Header::refusal) return refusal(*packet);
    }
    return error(Code::timeout, me() + " timed out waiting for rank 0 (" +
                                    process_in_words(peer_credentials(socket_.fd()).pid) +
                                    ") to say that all ranks are there");
  }

  Rank rank_;
  int size_;
  std::string job_;
  Socket socket_;
};

}  // namespace

std::shared_ptr<Bootstrap> spoke(Rank rank, int size, const std::string& job, Deadline deadline) {
  return std::make_shared<Spoke>(rank, size, job, deadline);
}

}  // namespace a2a::local
