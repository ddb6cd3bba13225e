// The bytes that are sent over TCP: the receiver accepts the frames of the sender, and no others.
#include "bootstrap/tcp/frames.h"

#include "check.h"

namespace {

using namespace a2a;
using wire::PieceKind;

const std::string kSecret = "a secret of the ranks";

struct Meeting {
  std::string greetings = wire::greeting({1}) + wire::greeting({2});
  wire::Introduction who{.rank = 3, .size = 5, .pid = 77, .job = "train"};
  std::string proof = wire::make_proof(kSecret, greetings, who);
};

std::string flip(std::string text, size_t bit) {
  text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
  return text;
}

std::string random_text(check::Random& random, size_t bytes) {
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

TEST("a greeting, its beginnings, and nothing else") {
  const std::string hello = wire::greeting({7});
  CHECK_EQ(hello.size(), wire::kGreetingBytes);
  for (size_t bytes = 0; bytes <= hello.size(); ++bytes) CHECK(wire::may_be_greeting(hello.substr(0, bytes)));
  CHECK(!wire::may_be_greeting(hello + "x"));
  for (size_t bit = 0; bit < 64; ++bit) CHECK(!wire::may_be_greeting(flip(hello, bit)));
  CHECK(!wire::may_be_greeting("GET / HTTP/1.1\r\n"));
}

TEST("a proof says who it is") {
  const Meeting m;
  CHECK_EQ(m.proof.size(), wire::kProofBytes);
  const auto who = wire::check_proof(kSecret, m.greetings, m.proof);
  if (!CHECK(who.has_value())) return;
  CHECK_EQ(who->protocol, wire::kProtocol);
  CHECK_EQ(who->rank, 3);
  CHECK_EQ(who->size, 5);
  CHECK_EQ(who->pid, 77);
  CHECK_EQ(who->job, "train");
}

TEST("a proof holds for its secret, its nonces and its words") {
  const Meeting m;
  CHECK(!wire::check_proof(kSecret + "!", m.greetings, m.proof));
  CHECK(!wire::check_proof("", m.greetings, m.proof));
  for (size_t bit = 0; bit < 8 * m.proof.size(); ++bit)
    CHECK(!wire::check_proof(kSecret, m.greetings, flip(m.proof, bit)));
  for (size_t bit = 0; bit < 8 * m.greetings.size(); ++bit)
    CHECK(!wire::check_proof(kSecret, flip(m.greetings, bit), m.proof));
  for (size_t bytes = 0; bytes < m.proof.size(); ++bytes)
    CHECK(!wire::check_proof(kSecret, m.greetings, m.proof.substr(0, bytes)));
  CHECK(!wire::check_proof(kSecret, m.greetings, m.proof + "x"));
}

TEST("each connection and each direction has a key of its own") {
  const Meeting m;
  const auto keys = wire::session_keys(kSecret, m.greetings, m.proof);
  CHECK(keys.to_rank_0 != keys.from_rank_0);
  CHECK(keys.to_rank_0 != wire::session_keys(kSecret, flip(m.greetings, 300), m.proof).to_rank_0);
  CHECK(keys.to_rank_0 != wire::session_keys(kSecret + "!", m.greetings, m.proof).to_rank_0);
  CHECK(as_text(keys.to_rank_0) != std::string_view(m.proof).substr(m.proof.size() - 32));
}

TEST("long names of jobs are told apart") {
  const std::string longest(wire::kLongestLabel, 'x');
  CHECK_EQ(wire::label("job#0"), "job#0");
  CHECK_EQ(wire::label(longest), longest);
  const std::string one = wire::label(longest + "a"), other = wire::label(longest + "b");
  CHECK(one != other);
  CHECK_EQ(one.size(), wire::kLongestLabel);
}

// Feeds in random portions and collects what comes out.
std::string opened(wire::Opener& opener, std::string_view bytes, check::Random& random) {
  std::string text;
  while (!bytes.empty() && !opener.forged()) {
    const size_t portion = std::min({bytes.size(), opener.room(), random.in(size_t{1}, size_t{70000})});
    if (!CHECK(portion > 0)) return text;
    opener.feed(bytes.substr(0, portion));
    bytes.remove_prefix(portion);
    while (const auto frame = opener.next()) text += frame->payload;
  }
  return text;
}

TEST("messages of any length go through in frames of at most 64 KiB") {
  check::Random random(check::seed());
  wire::Sealer sealer({9});
  wire::Opener opener({9});
  for (const size_t bytes : {size_t{0}, size_t{1}, wire::kLargestFrame - wire::kFrameOverhead,
                             wire::kLargestFrame - wire::kFrameOverhead + 1, size_t{300'000}}) {
    const std::string message = random_text(random, bytes);
    const auto pieces = wire::pieces(message);
    CHECK_EQ(static_cast<int>(pieces.back().kind), static_cast<int>(PieceKind::last));
    std::string sealed;
    for (const auto& piece : pieces) {
      const std::string frame = sealer.seal(piece);
      CHECK(frame.size() <= wire::kLargestFrame);
      sealed += frame;
    }
    CHECK(opened(opener, sealed, random) == message);
    CHECK(!opener.forged());
  }
}

TEST("a frame that is changed, repeated, left out or another connection's is noticed") {
  check::Random random(check::seed());
  wire::Sealer sealer({9});
  const std::string one = sealer.seal(wire::piece(PieceKind::part, "one")),
                    two = sealer.seal(wire::piece(PieceKind::last, "two"));
  const auto accepts = [&](const std::string& bytes, uint8_t key = 9) {
    wire::Opener opener({key});
    const std::string text = opened(opener, bytes, random);
    return std::pair(text, opener.forged());
  };
  CHECK(accepts(one + two) == std::pair(std::string("onetwo"), false));
  CHECK(accepts(two).second);
  CHECK(accepts(one + one) == std::pair(std::string("one"), true));
  CHECK(accepts(one + two, 8).second);
  for (size_t bit = 32; bit < 8 * one.size(); ++bit) CHECK(accepts(flip(one, bit)) == std::pair(std::string(), true));
  for (size_t bit = 0; bit < 32; ++bit)
    CHECK_EQ(accepts(flip(one, bit) + two).first, "");  // the length: it may wait for more bytes
}

TEST("a giant length is refused before its bytes come") {
  for (const char* header : {"\xff\xff\xff\xff", "\xd9\xff\x00\x00"}) {
    wire::Opener opener({});
    opener.feed({header, 4});
    opener.feed({"\3\0\0\0", 4});
    CHECK(!opener.next() && opener.forged());
  }
}

TEST("refusals") {
  const Error error = wire::unpack_refusal(wire::pack_refusal(Error(Code::mismatch, "text")));
  CHECK_EQ(static_cast<int>(error.code()), static_cast<int>(Code::mismatch));
  CHECK_EQ(std::string(error.what()), "text");
  for (const std::string& odd :
       {std::string(), std::string("\0\0\0", 3), std::string("\xff\xff\xff\xff", 4), std::string(4, '\0')})
    CHECK_EQ(static_cast<int>(wire::unpack_refusal(odd).code()), static_cast<int>(Code::backend));
  CHECK(wire::pack_refusal(Error(Code::backend, std::string(1 << 20, 'x'))).size() < 4096);
}

TEST("tables of strings") {
  check::Random random(check::seed());
  for (int i = 0; i < 200; ++i) {
    std::vector<std::string> strings(random.in(size_t{0}, size_t{6}));
    for (std::string& s : strings) s = random_text(random, random.in(size_t{0}, size_t{40}));
    const std::string table = wire::pack_strings(strings);
    CHECK(wire::unpack_strings(table, strings.size()) == strings);
    CHECK(!wire::unpack_strings(table, strings.size() + 1));
    CHECK(!wire::unpack_strings(table + "x", strings.size()));
    if (!table.empty()) CHECK(!wire::unpack_strings(table.substr(0, table.size() - 1), strings.size()));
  }
  CHECK(!wire::unpack_strings(std::string(8, '\xff'), 1));
}

}  // namespace
