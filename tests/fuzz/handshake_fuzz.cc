// How ranks meet, with a stranger or a broken rank among them: the bootstrap's rank 0, its other ranks, and the meeting
// of a shared-memory group. Whatever comes, each side ends in time, with a group or with an error.
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>

#include "a2a/bootstrap.h"
#include "input.h"
#include "transport/shm/peers/handshake.h"
#include "transport/shm/peers/membership.h"
#include "transport/shm/peers/unix_socket.h"

namespace {

using namespace a2a;
using fuzz::Input;

constexpr double kTooLong = 10;  // seconds

// Ranks that nobody disturbs always meet; the others are not waited for longer than it takes.
Deadline patience(const Input& input) { return Deadline::after_seconds(input.empty() ? kTooLong / 2 : 0.02); }

std::string new_job() {
  static int count = 0;
  return "fuzz-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

// The address of the socket of a job, as in packet.h.
sockaddr_un address_of(const std::string& job, socklen_t* length) {
  const std::string name = "a2a-" + std::to_string(::geteuid()) + "-" + job;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Descriptor new_socket() { return Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }

// packet.h's header.
struct Header {
  uint32_t magic = 0x61326103, kind = 0;
  int32_t rank = 1, size = 2, pid = 0;
};

// One packet: a header with some of its bytes changed and a text, or any bytes.
void send_packet(int socket, Input& input, const Header& usual) {
  const auto choice = input.take<uint8_t>();
  std::string packet;
  if (choice % 4 != 0) {
    Header header = usual;
    header.kind = choice / 4 % 5;
    input.patch(header);
    packet.assign(reinterpret_cast<const char*>(&header), sizeof(header));
  }
  packet += input.take_bytes(input.take<uint8_t>());
  (void)!::send(socket, packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

template <class Body>
bool outlives_errors(Body body) {
  try {
    body();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// A stranger talks to rank 0 before the real rank 1 comes. Returns whether the job was a success nevertheless.
bool disturb_hub(Input input) {
  const std::string job = new_job();
  const Deadline deadline = patience(input);
  std::atomic<bool> over = false;
  std::thread others([&job, &input, &over, deadline] {
    socklen_t length = 0;
    const sockaddr_un address = address_of(job, &length);
    std::vector<Descriptor> strangers;
    for (int i = 0; i < 4 && !input.empty(); ++i) {
      strangers.push_back(new_socket());
      const Deadline latest = Deadline::after_seconds(kTooLong / 2);
      while (::connect(strangers.back().fd(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
        if (over) return;
        fuzz::require(!latest.passed(), "rank 0 listens elsewhere");
        std::this_thread::yield();
      }
      for (int packets = input.take<uint8_t>() % 4; packets >= 0; --packets) {
        send_packet(strangers.back().fd(), input, {});
      }
      if (input.take<uint8_t>() % 2 == 0) strangers.pop_back();
    }
    outlives_errors([&] { unix_bootstrap(1, 2, job, deadline)->allgather("one", deadline); });
  });
  const bool good = outlives_errors([&] {
    const auto all = unix_bootstrap(0, 2, job, deadline)->allgather("zero", deadline);
    fuzz::require(all.size() == 2, "a string is missing");
  });
  over = true;
  others.join();
  return good;
}

// Rank 1 finds somebody in rank 0's place.
bool disturb_spoke(Input input) {
  const std::string job = new_job();
  const Deadline deadline = Deadline::after_seconds(0.02);
  socklen_t length = 0;
  const sockaddr_un address = address_of(job, &length);
  Descriptor listener = new_socket();
  fuzz::require(::bind(listener.fd(), reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
                    ::listen(listener.fd(), 4) == 0,
                "cannot listen");
  std::thread zero([&listener, &input] {
    Descriptor socket(::accept(listener.fd(), nullptr, nullptr));
    listener.reset();  // nobody is there when it comes again
    while (!input.empty()) send_packet(socket.fd(), input, {.rank = 0});
  });
  const bool good = outlives_errors([&] {
    const auto all = unix_bootstrap(1, 2, job, deadline)->allgather("one", deadline);
    fuzz::require(all.size() == 2, "a string is missing");
  });
  zero.join();
  return good;
}

// What handshake.cc sends.
struct Announcement {
  uint32_t protocol, uid;
  int32_t size;
  uint32_t bell;
  int32_t pid;
  uint64_t pid_namespace;
  char boot_id[40];
  uint64_t nonce, nonce_address, segment_bytes, common_bytes, seat, block, cpu_quota_micros;
  cpu_set_t cpus;
  char listener[32];
};
struct Hello {
  uint32_t protocol;
  int32_t rank;
  uint64_t nonce, link;
  uint32_t gave_up;
  int32_t culprit;
};

// Rank 0 of two, as far as rank 1 can see: it tells its address, connects and says hello, all of it while rank 1 asks
// for the strings. Two processes meet like this; here they are one.
class FakeRank final : public Bootstrap {
 public:
  explicit FakeRank(Input input) : input_(input) {}

  std::vector<std::string> allgather(std::string_view mine, Deadline) override {
    Announcement own, fake;
    fuzz::require(mine.size() == sizeof(own), "the address has changed");
    std::memcpy(&own, mine.data(), sizeof(own));
    fake = own;
    fake.nonce = ~own.nonce;
    fake.segment_bytes = kSegment;
    fake.common_bytes = shm::kBellsBytes;
    fake.seat = 0;
    fake.block = 4096;
    fake.bell = 3;
    input_.patch(fake);
    const std::string_view name(own.listener, ::strnlen(own.listener, sizeof(own.listener)));
    const Hello hello{own.protocol, 0, fake.nonce, 1, 0, -1};
    // Nobody accepts yet: one connection more than this would wait for that.
    for (int i = 0; i < 2 && !input_.empty(); ++i) strange_hello(name, hello);
    last_ = shm::connect_to_listener(name);
    greet(last_.fd(), hello);
    return {std::string(reinterpret_cast<const char*>(&fake), sizeof(fake)), std::string(mine)};
  }

 private:
  static constexpr size_t kSegment = size_t{1} << 20;

  void strange_hello(std::string_view name, Hello hello) {
    const Descriptor socket = shm::connect_to_listener(name);
    const auto choice = input_.take<uint8_t>();
    input_.patch(hello);
    const int fds[2] = {choice % 2 == 0 ? segment_.fd() : common_.fd(), common_.fd()};
    const std::string_view bytes(reinterpret_cast<const char*>(&hello), sizeof(hello) - choice / 64 * 8);
    shm::send_message(socket.fd(), bytes, std::span(fds, choice / 4 % 3));
    if (choice % 8 < 4) shm::send_message(socket.fd(), input_.take_bytes(choice / 8));
  }
  void greet(int socket, const Hello& hello) {
    const int fds[2] = {segment_.fd(), common_.fd()};
    shm::try_send(socket, hello, fds);
    shm::try_send(socket, uint32_t{1});  // the read check
  }

  Input input_;
  Descriptor last_;
  static inline const Descriptor segment_ = shm::sealed_memfd("fuzz", kSegment);
  static inline const Descriptor common_ = shm::sealed_memfd("fuzz-common", shm::kBellsBytes);
};

bool disturb_handshake(Input input) {
  auto progress = shm::ShmProgress::of_this_thread();
  auto block = shm::Membership::new_block(progress->memory(), 2);
  const uint64_t offset = progress->memory().arena().offset(block.get());
  FakeRank fake(input);
  const bool good = outlives_errors([&] {
    const shm::ConnectedGroup met = shm::connect_group(1, 2, fake, *progress, offset, patience(input), {});
    met.local_peers[0]->block(met.blocks[0], 2);
    met.local_peers[0]->gone();
    (void)met.local_peers[0]->state();
    (void)met.local_peers[0]->seat->sleepers.load(std::memory_order_relaxed);
    shm::wake(met.local_peers[0]->sleeper());
  });
  return good;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes == 0) return 0;
  const auto before = std::chrono::steady_clock::now();
  const Input input(data + 1, bytes - 1);
  const bool good = data[0] % 3 == 0   ? disturb_hub(input)
                    : data[0] % 3 == 1 ? disturb_spoke(input)
                                       : disturb_handshake(input);
  const bool disturbed = bytes > 1 || data[0] % 3 == 1;
  fuzz::require(good || disturbed, "ranks that nobody disturbs do not meet");
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - before;
  fuzz::require(took.count() < kTooLong, "the ranks hang");
  return 0;
}
