// Connections between processes, as two ends of a socket in this one: the order of messages, memory that is withdrawn,
// and ends that send invalid bytes.
#include "transport/tcp/connection.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cstring>
#include <numeric>

#include "check.h"

namespace {

using a2a::Socket;
using a2a::tcp::Connection;
using a2a::tcp::Flight;
using a2a::tcp::FlightPtr;
using a2a::tcp::FrameKind;
using a2a::tcp::Head;

struct Pair {
  Pair() {
    int fds[2];
    CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    a = std::make_unique<Connection>(Socket(fds[0]), "pid 1", "");
    b = std::make_unique<Connection>(Socket(fds[1]), "pid 2", "");
  }
  void advance() {
    a->write(), b->write();
    a->read([this](std::string message) { at_a.push_back(std::move(message)); });
    b->read([this](std::string message) { at_b.push_back(std::move(message)); });
  }
  std::unique_ptr<Connection> a, b;
  std::vector<std::string> at_a, at_b;
};

FlightPtr flight(std::vector<std::byte>& memory) {
  return std::make_shared<Flight>(Flight{memory.data(), memory.size()});
}

std::vector<std::byte> pattern(size_t bytes, unsigned seed) {
  std::vector<std::byte> memory(bytes);
  for (size_t i = 0; i < bytes; ++i) memory[i] = static_cast<std::byte>((i * 31 + (i >> 9) + seed) & 0xff);
  return memory;
}

// Sends invalid bytes to a connection. Returns whether it still lives.
bool survives(const std::string& bytes) {
  int fds[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
  Connection connection(Socket(fds[0]), "pid 1", "");
  const Socket other(fds[1]);
  for (std::string_view left = bytes; !left.empty() && connection.open();) {
    const ssize_t sent = ::send(other.fd(), left.data(), left.size(), MSG_NOSIGNAL);
    if (sent > 0) left.remove_prefix(static_cast<size_t>(sent));
    connection.read([](const std::string&) {});
  }
  connection.read([](const std::string&) {});
  CHECK_EQ(connection.open(), !connection.loss());
  return connection.open();
}

std::string head(FrameKind kind, uint32_t tag, uint64_t bytes) {
  const Head it{kind, tag, bytes};
  return {reinterpret_cast<const char*>(&it), sizeof(it)};
}

}  // namespace

TEST("messages of all lengths, in order, both ways") {
  Pair pair;
  std::vector<std::string> sent;
  for (const size_t bytes : {1, 15, 16, 17, 4079, 4080, 4081, 70'000, 3'000'000, 5}) {
    sent.emplace_back(bytes, static_cast<char>('a' + sent.size()));
    pair.a->post(sent.back());
    pair.b->post(sent.back());
  }
  CHECK(!pair.a->flushed());
  for (int i = 0; i < 1000 && pair.at_b.size() < sent.size(); ++i) pair.advance();
  CHECK(pair.at_a == sent);
  CHECK(pair.at_b == sent);
  CHECK(pair.a->flushed() && !pair.a->has_more());
}

TEST("memory waits for the other end, and holds up nothing") {
  Pair pair;
  auto first = pattern(5'000'000, 1), second = pattern(700'000, 2), third = pattern(10, 3);
  const auto f = flight(first), s = flight(second), t = flight(third);
  pair.a->send(7, f);
  pair.a->send(8, s);
  pair.a->send(8, t);
  pair.a->post("a word");
  for (int i = 0; i < 10; ++i) pair.advance();
  CHECK(pair.at_b == std::vector<std::string>{"a word"});
  CHECK(!f->done() && !s->done() && pair.a->flushed());
  // The later tag is received first.
  std::vector<std::byte> to_second(second.size()), to_third(third.size()), to_first(first.size());
  const auto gs = flight(to_second), gt = flight(to_third), gf = flight(to_first);
  pair.b->receive(8, gs);
  pair.b->receive(8, gt);
  for (int i = 0; i < 1000 && !gt->done(); ++i) pair.advance();
  CHECK(s->done() && t->done() && gs->done() && !f->done());
  CHECK(to_second == second && to_third == third);
  pair.b->receive(7, gf);
  for (int i = 0; i < 1000 && !gf->done(); ++i) pair.advance();
  CHECK(f->done() && gf->done() && to_first == first);
}

TEST("a message overtakes memory") {
  Pair pair;
  auto memory = pattern(100'000'000, 1);
  std::vector<std::byte> target(memory.size());
  const auto out = flight(memory), in = flight(target);
  pair.b->receive(1, in);
  pair.a->send(1, out);
  pair.advance();
  pair.a->post("a word");
  for (int i = 0; i < 10'000 && pair.at_b.empty(); ++i) pair.advance();
  CHECK(!in->done());
  CHECK(target.size() - in->left < size_t{8} << 20);
}

TEST("abandoned memory is not written again, and later messages arrive") {
  for (const bool sender : {true, false}) {
    for (const int rounds : {0, 1, 3}) {
      Pair pair;
      auto memory = pattern(40'000'000, 1), next = pattern(300'000, 2);
      std::vector<std::byte> target(memory.size()), to_next(next.size());
      const auto out = flight(memory), in = flight(target);
      pair.a->send(1, out);
      pair.b->receive(1, in);
      for (int i = 0; i < rounds; ++i) pair.advance();
      CHECK(!out->done() && !in->done());
      if (sender) {
        pair.a->abandon(*out);
        CHECK(out->done());
        memory.assign(memory.size(), std::byte{0xee});
        for (int i = 0; i < 100; ++i) pair.advance();
        const auto right = pattern(memory.size(), 1);
        CHECK(std::equal(right.begin(), right.begin() + static_cast<ptrdiff_t>(target.size() - in->left),
                         target.begin()));
        pair.b->abandon(*in);
      } else {
        pair.b->abandon(*in);
        target.assign(target.size(), std::byte{0xee});
        for (int i = 0; i < 10'000 && !out->done(); ++i) pair.advance();
        CHECK(out->done());
        CHECK(std::ranges::all_of(target, [](std::byte byte) { return byte == std::byte{0xee}; }));
      }
      const auto more = flight(next), there = flight(to_next);
      pair.b->receive(2, there);
      pair.a->send(2, more);
      pair.a->post("a word");
      for (int i = 0; i < 10'000 && !there->done(); ++i) pair.advance();
      CHECK(to_next == next && pair.at_b == std::vector<std::string>{"a word"});
    }
  }
}

TEST("a receive that is withdrawn leaves nothing behind, and its tag can be used again") {
  Pair pair;
  for (unsigned round = 0; round < 50; ++round) {
    auto memory = pattern(100'000, round);
    std::vector<std::byte> never(memory.size(), std::byte{7}), target(memory.size() / 2);
    const auto unwanted = flight(never), in = flight(target);
    pair.b->receive(1, unwanted);
    if (round % 2 == 0) pair.advance();
    unwanted->abandoned = true;
    pair.b->withdraw(1);
    pair.b->receive(1, in);
    const auto out = std::make_shared<Flight>(Flight{memory.data(), target.size()});
    pair.a->send(1, out);
    if (round % 3 == 0) pair.a->post("a word");
    for (int i = 0; i < 1000 && !(in->done() && out->done()); ++i) pair.advance();
    CHECK(std::equal(target.begin(), target.end(), memory.begin()));
    CHECK(std::ranges::all_of(never, [](std::byte byte) { return byte == std::byte{7}; }));
  }
  // Memory that is being sent cannot be withdrawn.
  auto memory = pattern(40'000'000, 1);
  std::vector<std::byte> target(memory.size());
  const auto out = flight(memory), in = flight(target);
  pair.a->send(2, out);
  pair.b->receive(2, in);
  for (int i = 0; i < 3; ++i) pair.advance();
  CHECK(!out->done());
  in->abandoned = true;
  pair.b->withdraw(2);
  for (int i = 0; i < 1000 && pair.a->open(); ++i) pair.advance();
  CHECK(!pair.a->open() || !pair.b->open());
}

TEST("an orderly end is no loss, an abrupt one is, and earlier messages arrive") {
  Pair pair;
  pair.a->post("last words");
  pair.a->leave();
  pair.advance(), pair.advance();
  CHECK(pair.at_b == std::vector<std::string>{"last words"});
  CHECK(!pair.b->open() && !pair.b->loss());
  Pair abrupt;
  abrupt.a->post("last words");
  abrupt.a = std::make_unique<Connection>(Socket(), "", "");
  abrupt.b->read([&](std::string message) { abrupt.at_b.push_back(std::move(message)); });
  CHECK(abrupt.at_b == std::vector<std::string>{"last words"});
  abrupt.b->read([](const std::string&) {});
  if (CHECK(abrupt.b->loss())) CHECK_EQ(abrupt.b->loss()->how, "its connection was closed (pid 2)");
  abrupt.b->post("to nobody");
  CHECK(abrupt.b->flushed());
}

TEST("messages from before the connection was made arrive first") {
  const std::string early = head(FrameKind::message, 0, 9) + "a ";
  int fds[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
  Connection connection(Socket(fds[0]), "pid 1", early);
  const Socket other(fds[1]);
  CHECK(::send(other.fd(), "message", 7, 0) == 7);
  std::vector<std::string> heard;
  connection.read([&](std::string message) { heard.push_back(std::move(message)); });
  CHECK(heard == std::vector<std::string>{"a message"});
}

TEST("invalid frames end the connection and nothing else") {
  CHECK(survives(""));
  CHECK(survives(head(FrameKind::message, 0, 3) + "abc"));
  CHECK(survives(head(FrameKind::message, 0, a2a::tcp::kMostMessage) + std::string(100'000, 'x')));
  CHECK(survives(head(FrameKind::ready, 5, 1) + head(FrameKind::ready, 5, 100)));
  CHECK(!survives(head(static_cast<FrameKind>(0), 0, 0)));
  CHECK(!survives(head(static_cast<FrameKind>(9), 0, 8)));
  CHECK(!survives(head(FrameKind::message, 0, 0)));
  CHECK(!survives(head(FrameKind::message, 0, a2a::tcp::kMostMessage + 1)));
  CHECK(!survives(head(FrameKind::memory, 5, 100)));
  CHECK(!survives(head(FrameKind::memory, 5, 0)));
  CHECK(!survives(head(FrameKind::ready, 5, 1) + head(FrameKind::ready, 5, UINT64_MAX)));
  CHECK(!survives(head(FrameKind::goodbye, 0, 0) + head(FrameKind::message, 0, 1)));
  std::string many;
  for (uint32_t tag = 0; tag < a2a::tcp::kMostAnnounced + 2; ++tag) many += head(FrameKind::ready, tag, 1);
  CHECK(!survives(many));
}

TEST("random frames, some of which make sense") {
  check::Random random(check::seed());
  for (int round = 0; round < 2000; ++round) {
    const check::Note note("round", static_cast<uint64_t>(round));
    std::string bytes;
    for (int frames = random.in(1, 20); frames > 0; --frames) {
      const auto kind = static_cast<FrameKind>(random.in(0, 6));
      const auto length = static_cast<size_t>(random.in(0, 5000));
      bytes += head(kind, static_cast<uint32_t>(random.in(0, 3)), length);
      if (kind == FrameKind::message || random.in(0, 3) == 0) bytes.append(length, 'x');
    }
    survives(bytes);
  }
}

TEST("more memory than was waited for") {
  int fds[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
  Connection connection(Socket(fds[0]), "pid 1", "");
  const Socket other(fds[1]);
  std::vector<std::byte> memory(100);
  const auto in = flight(memory);
  connection.receive(3, in);
  const std::string right = head(FrameKind::memory, 3, 60) + std::string(60, 'x');
  const std::string wrong = head(FrameKind::memory, 3, 41);
  CHECK(::send(other.fd(), right.data(), right.size(), 0) == static_cast<ssize_t>(right.size()));
  connection.read([](const std::string&) {});
  CHECK(connection.open() && in->left == 40);
  CHECK(::send(other.fd(), wrong.data(), wrong.size(), 0) == static_cast<ssize_t>(wrong.size()));
  connection.read([](const std::string&) {});
  CHECK(!connection.open() && !in->done());
}
