// A peer whose packets have flipped bits never harms this rank: it raises or it succeeds; it does not crash, hang or
// write outside of its buffers. `packet_flip_test --flips=1000000` is the long version.
#include <array>

#include "check.h"
#include "message_peer.h"

namespace {

using namespace shm_test;

constexpr size_t kSizes[] = {0, 1, kPacketPayload, kPacketPayload + 1, 5000, 65537, 300000};

uint64_t wanted_flips() { return std::stoull(check::option("flips", "10000")); }

struct Post {
  size_t bytes = 0;
  bool sends = false;                     // this rank
  PacketKind kind = PacketKind::inlined;  // of the peer's message
  bool early = false;                     // before the receive
  bool reads_memory = true;               // the peer
};

std::vector<PacketKind> kinds_for(size_t bytes) {
  std::vector<PacketKind> kinds{PacketKind::fragment};
  if (bytes > 0) kinds.insert(kinds.end(), {PacketKind::shared, PacketKind::cma});
  if (bytes <= kPacketPayload) kinds.push_back(PacketKind::inlined);
  return kinds;
}

// Runs one message; change() is called before each step. Returns whether it succeeded; otherwise the next one starts
// anew.
template <class Change>
bool play(HostilePeer& hostile, std::unique_ptr<MessagePeer>& packets, const Post& post, Change change) {
  constexpr std::byte kUntouched{0xA5};
  constexpr size_t kMargin = 64;
  std::vector<std::byte> memory(post.bytes + 2 * kMargin, kUntouched);
  bool good = true;
  std::shared_ptr<MessageWork> work;
  try {
    if (!post.sends && post.early) packets->send(post.kind, post.bytes);
    change();
    work = packets->start(post.sends, memory.data() + kMargin, post.bytes);
    if (!post.sends && !post.early) packets->send(post.kind, post.bytes);
    constexpr int kSteps = 40;
    for (int step = 0; step < kSteps; ++step) {  // goes on after its end, because the peer has packets to read
      change();
      packets->answer(post.reads_memory);
      if (!packets->advance() && work->finished()) break;
    }
    if (!work->finished()) throw Error(Code::timeout, "it does not come");
    work->wait_until(Deadline::never());  // throws its error
  } catch (const Error& error) {
    good = false;
    packets->fail(error);
    packets.reset();
    hostile.start_again();
    packets = std::make_unique<MessagePeer>(hostile);
  }
  const std::span<std::byte> all(memory);
  const auto untouched = [](const std::byte& b) { return b == kUntouched; };
  fuzz::require(std::ranges::all_of(all.first(kMargin), untouched) && std::ranges::all_of(all.last(kMargin), untouched),
                "something was written beside the receive buffer");
  fuzz::require(!post.sends || std::ranges::all_of(all, untouched), "what is sent was written");
  return good;
}

TEST("the hostile peer means well when nothing is flipped") {
  HostilePeer hostile;
  hostile.allow_cma(true);
  auto packets = std::make_unique<MessagePeer>(hostile);
  for (const size_t bytes : kSizes) {
    const check::Note note("bytes", bytes);
    for (const bool early : {false, true}) {
      for (const PacketKind kind : kinds_for(bytes)) {
        const check::Note second("kind", static_cast<uint64_t>(kind));
        CHECK(play(hostile, packets, {.bytes = bytes, .kind = kind, .early = early}, [] {}));
      }
      CHECK(play(hostile, packets, {.bytes = bytes, .sends = true, .reads_memory = early}, [] {}));
    }
  }
}

TEST("flipped bits in packets") {
  check::Random random(check::seed());
  HostilePeer hostile;
  uint64_t flips = 0, good = 0, bad = 0;
  auto packets = std::make_unique<MessagePeer>(hostile);
  while (flips < wanted_flips()) {
    hostile.allow_cma(random.chance(0.5));
    Post post{.bytes = kSizes[random.in(size_t{0}, std::size(kSizes) - 1)],
              .sends = random.chance(0.5),
              .early = random.chance(0.5),
              .reads_memory = random.chance(0.5)};
    const auto kinds = kinds_for(post.bytes);
    post.kind = random.chance(0.05) ? PacketKind::declined : kinds[random.in(size_t{0}, kinds.size() - 1)];
    if (post.kind == PacketKind::declined) post.bytes = std::min(post.bytes, kPacketPayload);
    const bool fine = play(hostile, packets, post, [&] {
      if (!random.chance(0.1)) return;
      // Mostly in a packet's head, which has the address and the number of the bytes.
      std::byte* const at = random.chance(0.8) ? packets->last() + random.in(size_t{0}, kCacheLine - 1)
                                               : hostile.mailbox() + random.in(size_t{0}, kMailboxBytes - 1);
      *at ^= std::byte{1} << random.in(0, 7);
      ++flips;
    });
    ++(fine ? good : bad);
  }
  std::cout << "  " << flips << " flips: " << good << " messages came, " << bad << " did not" << std::endl;
  CHECK(good > 0 && bad > 0);
}

}  // namespace
