// A peer whose letters have flipped bits never harms this rank: it raises or it succeeds; it does not crash, hang or
// write outside of its buffers. `letter_flip_test --flips=1000000` is the long version.
#include <array>

#include "../../fuzz/hostile_peer.h"
#include "check.h"
#include "core/facts.h"
#include "transport/shm/messages/messages.h"

namespace {

using namespace fuzz;

constexpr DType kBytes{1, 8, 1};
constexpr size_t kSizes[] = {0, 1, kLetterPayload, kLetterPayload + 1, 5000, 65537, 300000};
constexpr size_t kPiece = 100000;  // the size of the pieces in which the peer sends bytes that are not in a letter

uint64_t wanted_flips() { return std::stoull(check::option("flips", "10000")); }

// Messages of the rank, and the peer's letters, which are valid until the test flips bits of them.
class Correspondence {
 public:
  explicit Correspondence(HostilePeer& peer) : peer_(peer), messages_(peer.membership(), matching_, held_) {
    new (peer_.mailbox()) Mailbox<StdAtomics>{};
    publish_mailbox(peer_.block().pipe(HostilePeer::kMe), HostilePeer::kMailbox);
  }

  std::shared_ptr<MessageWork> start(bool sends, std::byte* data, size_t bytes) {
    const a2a::Message message{sends, HostilePeer::kPeer, 7, data, bytes, kBytes};
    const auto work = std::make_shared<MessageWork>(peer_.progress(), message);
    messages_.start(work);
    return work;
  }
  bool advance() { return messages_.advance(); }
  // Returns the letter that the peer wrote last. The rank has often not read it yet.
  std::byte* last() { return place(peer_.mailbox(), written_); }
  void fail(const Error& error) { messages_.fail_all(error); }

  // Sends a message of the peer: its first letter, and later pieces as the rank asks for them.
  void send(LetterKind kind, size_t bytes) {
    bytes_ = bytes;
    offset_ = 0;
    LetterHead head{++sent_, 7, bytes, 0, 0, 0, pack(kBytes), kind};
    if (kind == LetterKind::piece) return send_piece(kPiece);
    if (kind == LetterKind::inlined || kind == LetterKind::declined) head.length = static_cast<uint32_t>(bytes);
    if (kind == LetterKind::shared) head.where = HostilePeer::kData;
    if (kind == LetterKind::cma) head.where = reinterpret_cast<uint64_t>(peer_.data());
    write(head);
  }

  // Reads one letter of the rank, and answers it.
  void answer(bool reads_memory) {
    Membership& m = peer_.membership();
    const uint64_t where = mailbox_of(m.block().pipe(HostilePeer::kPeer));
    if (where == 0) return;
    const std::byte* const box = m.arena().base() + (where - 1);
    LetterHead head{};
    const auto* letter = reinterpret_cast<const Letter<StdAtomics>*>(place(box, taken_ + 1));
    if (!observe_letter(*letter, taken_ + 1, &head)) return;
    publish_taken(*reinterpret_cast<Mailbox<StdAtomics>*>(peer_.mailbox()), ++taken_);
    LetterHead reply{};
    reply.id = head.id;
    switch (head.kind) {
      case LetterKind::read:
        if (offset_ < bytes_) send_piece(kPiece);
        return;
      case LetterKind::unreadable:
        return send_piece(kPiece);
      case LetterKind::piece:
        reply.kind = LetterKind::read;
        reply.where = head.length > 0 ? head.where + 1 : 0;
        return write(reply);
      case LetterKind::shared:
      case LetterKind::cma:
        reply.kind = reads_memory ? LetterKind::taken : LetterKind::unreadable;
        return write(reply);
      default:
        return;
    }
  }

 private:
  template <class Byte>
  static Byte* place(Byte* box, uint64_t n) {
    return box + kCacheLine + n % kLetters * kLetterBytes;
  }
  void write(const LetterHead& head) {
    auto* letter = reinterpret_cast<Letter<StdAtomics>*>(place(peer_.mailbox(), ++written_));
    letter->head = head;
    publish_letter(*letter, written_);
  }
  void send_piece(size_t most) {
    const size_t length = std::min(most, bytes_ - offset_);
    LetterHead head{
        sent_, 7, bytes_, HostilePeer::kData, offset_, static_cast<uint32_t>(length), pack(kBytes), LetterKind::piece};
    offset_ += length;
    write(head);
  }

  HostilePeer& peer_;
  Matching matching_;
  a2a::HeldMessages held_;
  Messages messages_;
  uint64_t written_ = 0, taken_ = 0, sent_ = 0;
  size_t bytes_ = 0, offset_ = 0;  // of the last message that the peer sends
};

struct Post {
  size_t bytes = 0;
  bool sends = false;                     // this rank
  LetterKind kind = LetterKind::inlined;  // of the peer's message
  bool early = false;                     // before the receive
  bool reads_memory = true;               // the peer
};

std::vector<LetterKind> kinds_for(size_t bytes) {
  std::vector<LetterKind> kinds{LetterKind::piece};
  if (bytes > 0) kinds.insert(kinds.end(), {LetterKind::shared, LetterKind::cma});
  if (bytes <= kLetterPayload) kinds.push_back(LetterKind::inlined);
  return kinds;
}

// Runs one message; change() is called before each step. Returns whether it succeeded; otherwise the next one starts
// anew.
template <class Change>
bool play(HostilePeer& hostile, std::unique_ptr<Correspondence>& letters, const Post& post, Change change) {
  constexpr std::byte kUntouched{0xA5};
  constexpr size_t kMargin = 64;
  std::vector<std::byte> memory(post.bytes + 2 * kMargin, kUntouched);
  bool good = true;
  std::shared_ptr<MessageWork> work;
  try {
    if (!post.sends && post.early) letters->send(post.kind, post.bytes);
    change();
    work = letters->start(post.sends, memory.data() + kMargin, post.bytes);
    if (!post.sends && !post.early) letters->send(post.kind, post.bytes);
    constexpr int kSteps = 40;
    for (int step = 0; step < kSteps; ++step) {  // goes on after its end, because the peer has letters to read
      change();
      letters->answer(post.reads_memory);
      if (!letters->advance() && work->finished()) break;
    }
    if (!work->finished()) throw Error(Code::timeout, "it does not come");
    work->wait_until(Deadline::never());  // throws its error
  } catch (const Error& error) {
    good = false;
    letters->fail(error);
    letters.reset();
    hostile.start_again();
    letters = std::make_unique<Correspondence>(hostile);
  }
  const std::span<std::byte> all(memory);
  const auto untouched = [](const std::byte& b) { return b == kUntouched; };
  require(std::ranges::all_of(all.first(kMargin), untouched) && std::ranges::all_of(all.last(kMargin), untouched),
          "something was written beside the receive buffer");
  require(!post.sends || std::ranges::all_of(all, untouched), "what is sent was written");
  return good;
}

TEST("without flipped bits every operation succeeds") {
  HostilePeer hostile;
  hostile.allow_cma(true);
  auto letters = std::make_unique<Correspondence>(hostile);
  for (const size_t bytes : kSizes) {
    const check::Note note("bytes", bytes);
    for (const bool early : {false, true}) {
      for (const LetterKind kind : kinds_for(bytes)) {
        const check::Note second("kind", static_cast<uint64_t>(kind));
        CHECK(play(hostile, letters, {.bytes = bytes, .kind = kind, .early = early}, [] {}));
      }
      CHECK(play(hostile, letters, {.bytes = bytes, .sends = true, .reads_memory = early}, [] {}));
    }
  }
}

TEST("flipped bits in letters") {
  check::Random random(check::seed());
  HostilePeer hostile;
  uint64_t flips = 0, good = 0, bad = 0;
  auto letters = std::make_unique<Correspondence>(hostile);
  while (flips < wanted_flips()) {
    hostile.allow_cma(random.chance(0.5));
    Post post{.bytes = kSizes[random.in(size_t{0}, std::size(kSizes) - 1)],
              .sends = random.chance(0.5),
              .early = random.chance(0.5),
              .reads_memory = random.chance(0.5)};
    const auto kinds = kinds_for(post.bytes);
    post.kind = random.chance(0.05) ? LetterKind::declined : kinds[random.in(size_t{0}, kinds.size() - 1)];
    if (post.kind == LetterKind::declined) post.bytes = std::min(post.bytes, kLetterPayload);
    const bool fine = play(hostile, letters, post, [&] {
      if (!random.chance(0.1)) return;
      // Mostly in a letter's head, which has the address and the number of the bytes.
      std::byte* const at = random.chance(0.8) ? letters->last() + random.in(size_t{0}, kCacheLine - 1)
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
