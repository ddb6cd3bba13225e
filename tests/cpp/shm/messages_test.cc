// Messages of a rank whose peer is the test: which way their bytes go, and what the rank does with the peer's packets.
#include "transport/shm/messages/messages.h"

#include <sys/mman.h>

#include <array>
#include <cstdlib>
#include <numeric>

#include "check.h"
#include "message_peer.h"
#include "ranks.h"

namespace {

using namespace shm_test;
using Bytes = std::vector<std::byte>;

constexpr Rank kPeer = HostilePeer::kPeer;

Bytes numbered(size_t bytes) {
  Bytes all(bytes);
  for (size_t i = 0; i < bytes; ++i) all[i] = static_cast<std::byte>(i * 7 + i / 256);
  return all;
}

// The variables of one case. They hold for memberships that are made meanwhile.
class Variables {
 public:
  using Values = std::vector<std::pair<const char*, const char*>>;
  explicit Variables(const Values& values) {
    unset();
    for (const auto& [name, value] : values) ::setenv(name, value, 1);
  }
  ~Variables() { unset(); }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  static void unset() {
    for (const char* const name : {"A2A_SHM_DIRECT_MIN", "A2A_SHM_CMA_MIN"}) ::unsetenv(name);
  }
};

// A tensor of so many bytes every second of which lies in a gap.
a2a::Message with_gaps(bool sends, Bytes& memory) {
  const std::array<int64_t, 1> shape{static_cast<int64_t>(memory.size() / 2)}, strides{2};
  const size_t bytes = memory.size() / 2;
  a2a::Message message{sends, kPeer, kTag, memory.data(), bytes, kBytes};
  message.packed.reset(new PackedTensor{memory.data(), Strides(TensorLayout{shape, strides, 1}),
                                        std::make_unique_for_overwrite<std::byte[]>(bytes)});
  message.data = message.packed->packed.get();
  return message;
}

TEST("the way of a message is that of a pair of an exchange, and the same variables hold") {
  enum Memory { private_memory, shared, absent, gaps };
  const struct {
    size_t bytes;
    Memory memory;
    Variables::Values variables;
    bool cma, same_process;
    PacketKind kind;
  } cases[] = {
      {100, private_memory, {{"A2A_SHM_CMA_MIN", "1"}, {"A2A_SHM_DIRECT_MIN", "1"}}, true, true, PacketKind::inlined},
      {30'000, private_memory, {{"A2A_SHM_CMA_MIN", "1"}}, true, false, PacketKind::fragment},
      {100'000, private_memory, {{"A2A_SHM_CMA_MIN", "100000"}}, true, false, PacketKind::cma},
      {100'000, private_memory, {{"A2A_SHM_CMA_MIN", "100001"}}, true, false, PacketKind::fragment},
      {100'000, private_memory, {{"A2A_SHM_CMA_MIN", "1"}}, false, false, PacketKind::fragment},
      {100'000, private_memory, {}, true, false, PacketKind::cma},
      {100'000, private_memory, {}, false, false, PacketKind::fragment},
      {100'000, absent, {{"A2A_SHM_CMA_MIN", "1"}}, true, false, PacketKind::fragment},
      {100'000, private_memory, {}, true, true, PacketKind::pointer},
      {100'000, private_memory, {{"A2A_SHM_DIRECT_MIN", "100001"}}, false, true, PacketKind::fragment},
      {100'000, shared, {}, true, false, PacketKind::shared},
      {100'000, shared, {{"A2A_SHM_DIRECT_MIN", "100000"}}, true, false, PacketKind::shared},
      {100'000, shared, {{"A2A_SHM_DIRECT_MIN", "100001"}}, false, false, PacketKind::fragment},
      {100'000, gaps, {{"A2A_SHM_CMA_MIN", "1"}}, true, true, PacketKind::fragment},
  };
  uint64_t at = 0;
  for (const auto& of : cases) {
    const check::Note note("case", at++);
    const Variables variables(of.variables);
    HostilePeer peer;
    peer.allow_cma(of.cma);
    peer.membership().peer(kPeer).host->same_process = of.same_process;
    MessagePeer other(peer);
    Bytes input = numbered(2 * of.bytes);
    const fuzz::Tensor in_segment(peer.membership().arena(), of.bytes, of.memory == shared);
    void* const untouched = ::mmap(nullptr, of.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::byte* data = of.memory == shared ? in_segment.bytes().data() : input.data();
    if (of.memory == absent) data = static_cast<std::byte*>(untouched);
    const auto work = of.memory == gaps ? other.start(with_gaps(true, input)) : other.start(true, data, of.bytes);
    const auto packet = other.next();
    if (!CHECK(packet)) return;
    CHECK_EQ(packet->head.kind, of.kind);
    const bool eager = of.bytes <= kMostEager;
    CHECK_EQ(packet->head.length, eager ? of.bytes : 0);
    CHECK_EQ(work->finished(), eager);
    other.fail(Error(Code::aborted, "the end of the case"));
    peer.membership().peer(kPeer).host->same_process = false;
    ::munmap(untouched, of.bytes);
  }
}

TEST("a message comes on every way, into a tensor with gaps or without, whenever its receive is posted") {
  for (const size_t bytes : {size_t{0}, size_t{1}, kPacketPayload, size_t{5000}, size_t{300'000}}) {
    for (const PacketKind kind : {PacketKind::inlined, PacketKind::fragment, PacketKind::shared, PacketKind::cma}) {
      if (bytes == 0 && kind == PacketKind::cma) continue;
      if (kind == PacketKind::inlined && bytes > kPacketPayload) continue;
      for (const bool early : {false, true}) {
        for (const bool gaps : {false, true}) {
          if (gaps && bytes == 0) continue;
          const check::Note note("bytes", bytes), second("kind", static_cast<uint64_t>(kind)), third("gaps", gaps);
          HostilePeer peer;
          peer.allow_cma(true);
          MessagePeer other(peer);
          // A fragment of the peer always begins with its first bytes.
          Bytes sent = numbered(bytes);
          std::ranges::copy(sent, peer.data());
          for (size_t i = 100'000; kind == PacketKind::fragment && i < bytes; ++i) sent[i] = sent[i - 100'000];
          const auto write = [&] {
            other.send(kind, bytes);
            if (kind == PacketKind::inlined) std::ranges::copy(sent, other.last() + kCacheLine);
          };
          Bytes output(gaps ? 2 * bytes : bytes);
          if (early) write(), other.advance();
          const auto work = gaps ? other.start(with_gaps(false, output)) : other.start(false, output.data(), bytes);
          if (!early) write();
          for (int step = 0; step < 40 && !work->finished(); ++step) other.advance(), other.answer(true);
          if (!CHECK(work->finished())) return;
          CHECK_EQ(work->source(), kPeer);
          for (size_t i = 0; gaps && i < bytes; ++i) {
            CHECK(output[2 * i + 1] == std::byte{0});
            output[i] = output[2 * i];
          }
          output.resize(bytes);
          CHECK(output == sent);
        }
      }
    }
  }
}

TEST("a message is sent in fragments, two at once, out of a tensor with gaps or without") {
  for (const bool gaps : {false, true}) {
    HostilePeer peer;
    MessagePeer other(peer);
    constexpr size_t kAll = 900'000;
    Bytes input = numbered(gaps ? 2 * kAll : kAll), received;
    const auto work = gaps ? other.start(with_gaps(true, input)) : other.start(true, input.data(), kAll);
    const auto first = other.next();
    if (!CHECK(first && first->head.kind == PacketKind::fragment && first->head.length == 0)) return;
    CHECK(!other.next());
    other.reply(PacketKind::ack, first->head.id);
    std::vector<uint64_t> unread;
    size_t most = 0;
    for (int step = 0; step < 20; ++step) {
      other.advance();
      while (const auto packet = other.next()) {
        CHECK_EQ(packet->head.offset, received.size());
        const std::byte* const from = peer.membership().arena().base() + packet->head.where;
        received.insert(received.end(), from, from + packet->head.length);
        unread.push_back(packet->head.where + 1);
      }
      most = std::max(most, unread.size());
      if (unread.empty()) break;
      other.reply(PacketKind::ack, first->head.id, unread.front());
      unread.erase(unread.begin());
    }
    CHECK_EQ(most, 2);
    CHECK(work->finished() && received.size() == kAll);
    for (size_t i = 0; gaps && i < kAll; ++i) input[i] = input[2 * i];
    input.resize(kAll);
    CHECK(received == input);
  }
}

TEST("who cannot read the sender's memory gets fragments, now and later") {
  const Variables variables(Variables::Values{{"A2A_SHM_CMA_MIN", "1"}});
  HostilePeer peer;
  peer.allow_cma(true);
  MessagePeer other(peer);
  Bytes input = numbered(100'000);
  const auto work = other.start(true, input.data(), input.size());
  const auto header = other.next();
  if (!CHECK(header && header->head.kind == PacketKind::cma)) return;
  other.reply(PacketKind::nack, header->head.id);
  other.advance();
  const auto fragment = other.next();
  CHECK(fragment && fragment->head.kind == PacketKind::fragment && fragment->head.length == input.size());
  CHECK(work->finished());
  other.start(true, input.data(), input.size());
  const auto later = other.next();
  CHECK(later && later->head.kind == PacketKind::fragment);

  // The other way round: this rank asks.
  peer.allow_cma(false);
  Bytes output(5000);
  const auto receive = other.start(false, output.data(), output.size());
  other.send(PacketKind::cma, output.size());
  other.advance();
  const auto reply = other.next();
  CHECK(reply && reply->head.kind == PacketKind::nack && !receive->finished());
  other.fail(Error(Code::aborted, "the end of the test"));
}

TEST("of messages that nobody receives a rank sends 256 small ones and 16 larger ones before its sends wait") {
  HostilePeer peer;
  MessagePeer other(peer);
  Bytes input = numbered(kMostEager + 1);
  const auto kinds_of = [&](size_t bytes, size_t count) {
    std::vector<std::pair<PacketKind, bool>> kinds;  // and whether the send is finished
    for (size_t i = 0; i < count; ++i) {
      const auto work = other.start(true, input.data(), bytes);
      const auto packet = other.next();
      if (CHECK(packet)) kinds.emplace_back(packet->head.kind, work->finished());
    }
    return kinds;
  };
  using Sent = std::pair<PacketKind, bool>;
  const auto all = [](const auto& kinds, Sent is) {
    return std::ranges::all_of(kinds, [&](auto& k) { return k == is; });
  };
  CHECK(all(kinds_of(kPacketPayload, 256), {PacketKind::inlined, true}));
  CHECK(all(kinds_of(1, 1), {PacketKind::fragment, true}));
  CHECK(all(kinds_of(kMostEager, 15), {PacketKind::fragment, true}));
  CHECK(all(kinds_of(kMostEager, 3), {PacketKind::fragment, false}));
  CHECK(all(kinds_of(1, 3), {PacketKind::fragment, false}));
  CHECK(all(kinds_of(0, 3), {PacketKind::shared, false}));
  publish_matched(*reinterpret_cast<Mailbox<StdAtomics>*>(peer.mailbox()), 2);
  CHECK(all(kinds_of(1, 2), {PacketKind::inlined, true}));
  CHECK(all(kinds_of(1, 1), {PacketKind::fragment, false}));
  other.fail(Error(Code::aborted, "the end of the test"));
}

TEST("a message that disagrees with its receive is refused, and its sender hears of it") {
  for (const PacketKind kind : {PacketKind::inlined, PacketKind::fragment, PacketKind::shared, PacketKind::cma}) {
    const check::Note note("kind", static_cast<uint64_t>(kind));
    HostilePeer peer;
    MessagePeer other(peer);
    Bytes output(101);
    const auto work = other.start(false, output.data(), output.size());
    other.send(kind, 100);
    other.advance();
    CHECK_THROWS(Code::mismatch, "rank 1 sends 100 elements", work->wait_until(Deadline::never()));
    auto packet = other.next();
    if (kind == PacketKind::fragment) {
      CHECK(packet && packet->head.kind == PacketKind::ack && packet->head.where == HostilePeer::kData + 1);
      packet = other.next();
    }
    CHECK(packet && packet->head.kind == PacketKind::refused);
    CHECK(packet->text().find("rank 0 receives 101 elements") != std::string::npos);
    CHECK(output == Bytes(101));
  }
}

TEST("a message to this rank itself is kept while it is small, or copied when it is received, with gaps or without") {
  HostilePeer peer;
  MessagePeer other(peer);
  for (const size_t bytes : {size_t{0}, size_t{10}, kMostEager, kMostEager + 1}) {
    for (const bool gaps : {false, true}) {
      if (gaps && bytes == 0) continue;
      const check::Note note("bytes", bytes);
      Bytes input = numbered(gaps ? 2 * bytes : bytes), output(bytes);
      a2a::Message message = gaps ? with_gaps(true, input) : a2a::Message{true, 0, kTag, input.data(), bytes, kBytes};
      message.peer = HostilePeer::kMe;
      const auto send = other.start(message);
      CHECK_EQ(send->finished(), bytes <= kMostEager);
      const auto receive = other.start({false, HostilePeer::kMe, kTag, output.data(), bytes, kBytes});
      CHECK(send->finished() && receive->finished());
      for (size_t i = 0; gaps && i < bytes; ++i) input[i] = input[2 * i];
      input.resize(bytes);
      CHECK(output == input);
    }
  }
}

// Around the ring, out of shared and private memory, some of it with gaps, and several messages at once.
void around_the_ring(Communicator& comm) {
  check::Random random(check::seed());
  const Rank after = (comm.rank() + 1) % comm.size(), before = (comm.rank() + comm.size() - 1) % comm.size();
  constexpr size_t kSizes[] = {0, 1, kPacketPayload, kPacketPayload + 1, kMostEager, kMostEager + 1, 700'000};
  for (int round = 0; round < 8; ++round) {
    struct Exchanged {
      Bytes sent, received;
      std::shared_ptr<void> shared;
    };
    std::vector<Exchanged> all(4);
    std::vector<std::shared_ptr<Work>> works;
    for (size_t tag = 0; tag < all.size(); ++tag) {
      const size_t bytes = kSizes[random.in(size_t{0}, std::size(kSizes) - 1)];
      const bool gaps = bytes > 0 && random.chance(0.3), shared = random.chance(0.3);
      Exchanged& one = all[tag];
      one.sent.assign(bytes, static_cast<std::byte>(comm.rank() + 10 * round));
      one.received.resize(gaps ? 2 * bytes : bytes);
      const std::byte* data = one.sent.data();
      if (shared && bytes > 0) {
        one.shared = Communicator::allocate_shared(bytes);
        std::memcpy(one.shared.get(), data, bytes);
        data = static_cast<const std::byte*>(one.shared.get());
      }
      const std::array<int64_t, 1> shape{static_cast<int64_t>(bytes)}, strides{2};
      const TensorLayout layout{shape, strides, 1};
      Call call{.op = Op::recv, .dtype = kBytes};
      if (gaps) call.recv_layouts = {&layout, 1};
      const auto number = static_cast<int64_t>(tag);
      works.push_back(comm.send(data, bytes, after, number, {.op = Op::send, .dtype = kBytes}));
      works.push_back(comm.recv(one.received.data(), bytes, random.chance(0.5) ? before : -1, number, call));
    }
    for (const auto& work : works) work->wait();
    for (const Exchanged& one : all) {
      const auto value = static_cast<std::byte>(before + 10 * round);
      for (size_t i = 0; i < one.received.size(); ++i) {
        const bool gap = one.received.size() > one.sent.size() && i % 2 == 1;
        if (!CHECK(one.received[i] == (gap ? std::byte{0} : value))) return;
      }
    }
  }
}

TEST("ranks as threads and as processes exchange messages of all sizes") {
  ranks::as_threads(3, around_the_ring);
  ranks::as_processes(3, around_the_ring);
}

}  // namespace
