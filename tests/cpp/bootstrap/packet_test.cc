// The packets of ranks that meet over a Unix socket.
#include "bootstrap/unix/packet.h"

#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

namespace {

using namespace a2a;
using namespace a2a::local;

struct Pair {
  Pair() { CHECK_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0); }
  ~Pair() { ::close(ends[0]), ::close(ends[1]); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  int ends[2];
};

TEST("the longest string arrives whole, and none has come after it") {
  const Pair pair;
  const std::string text(kLargestString, 'x');
  CHECK(send(pair.ends[0], {.rank = 3}, text) == Sent::yes);
  std::optional<Packet> packet;
  CHECK(receive(pair.ends[1], packet));
  if (!CHECK(packet.has_value())) return;
  CHECK(packet->header.rank == 3 && packet->text == text);
  CHECK(receive(pair.ends[1], packet) && !packet);
}

TEST("a packet that is too long, too short or of somebody else is refused") {
  const auto refused = [](const Header& head, std::string_view text, size_t cut = 0) {
    const Pair pair;
    std::string sent(reinterpret_cast<const char*>(&head), sizeof(head));
    sent += text;
    sent.resize(sent.size() - cut);
    CHECK_EQ(::send(pair.ends[0], sent.data(), sent.size(), 0), sent.size());
    std::optional<Packet> packet;
    return !receive(pair.ends[1], packet) && !packet;
  };
  CHECK(!refused({}, ""));
  CHECK(refused({}, std::string(kLargestString + 1, 'x')));
  CHECK(refused({}, "", 1));
  CHECK(refused({.magic = kMagic + 1}, ""));
}

}  // namespace
