// Small programs that run the steps of the protocol against each other, each with what must hold. Their variants are
// mistakes that the steps alone do not prevent, such as two of them in the wrong order: the requirement must break.
//
// Include a checker first, which brings the namespace `model`: checker.h, or checker_relacy.h.
#pragma once

#include <array>

#include "transport/shm/protocol/mailbox.h"
#include "transport/shm/protocol/protocol.h"

namespace programs {

using namespace a2a::shm;
using a2a::Left;
using model::Atomics;
using model::require;
using model::variant;
using model::wait_until;
using std::memory_order_relaxed;

using Words = RankBlock<Atomics>;
using PairLine_ = PairLine<Atomics>;

inline Head head_of(uint64_t n) {
  Head head{};
  head.sent = n;
  return head;
}

// Who sees an operation's number sees the whole line of it.
struct Publish {
  static constexpr const char* kName = "a line is seen whole or not at all";
  static constexpr int kThreads = 2, kVariants = 1;
  PairLine_ line;

  void run(int thread) {
    if (thread == 0) {
      if (variant() == 1) publish(line, 1);
      line.head = head_of(1);
      if (variant() != 1) publish(line, 1);
    } else {
      Head head{};
      if (observe(line, 1, &head)) require(head.sent == 1, "a line is not what was published");
    }
  }
};

// Three operations through two slots, with bytes that the reader takes from the writer's memory: what belongs to an
// operation is not written before the reader is done with what stood there.
struct Reuse {
  static constexpr const char* kName = "a slot is written again only when its reader is done";
  static constexpr int kThreads = 2, kVariants = 2;
  static constexpr uint64_t kTwo = 2;
  std::array<PairLine_, kTwo> lines;
  std::array<Atomics::plain<uint64_t>, kTwo> bytes;
  Words reader;

  void run(int thread) { thread == 0 ? write() : read(); }
  void write() {
    uint64_t known = 0;
    for (uint64_t n = 1; n <= kTwo + 1; ++n) {
      const uint64_t ahead = kTwo + (variant() == 1 ? 1 : 0);
      if (n > ahead) wait_until([&] { return is_done(reader, n - ahead, &known); });
      bytes[n % kTwo] = n;
      lines[n % kTwo].head = head_of(n);
      publish(lines[n % kTwo], n);
    }
  }
  void read() {
    for (uint64_t n = 1; n <= kTwo + 1; ++n) {
      Head head{};
      wait_until([&] { return observe(lines[n % kTwo], n, &head); });
      if (variant() == 2) publish_done(reader, n);
      require(head.sent == n && bytes[n % kTwo] == n, "an operation got the bytes of another one");
      if (variant() != 2) publish_done(reader, n);
    }
  }
};

// A reader copies from the memory of a writer, who changes it again as soon as that is over, whatever else the reader
// still has to do. Both of two operations may be in flight.
struct Pull {
  static constexpr const char* kName = "memory is not changed under those who copy from it";
  static constexpr int kThreads = 2, kVariants = 1;
  std::array<PairLine_, 2> lines;
  std::array<Atomics::plain<int>, 2> memory;
  Pipe<Atomics, 1> reader;

  void run(int thread) {
    if (thread == 0) {
      for (size_t i = 0; i < 2; ++i) {
        memory[i] = 1;
        publish(lines[i], i + 1);
      }
    }
    for (size_t i = 0; i < 2; ++i) {
      if (thread == 0) {
        wait_until([&] { return is_copied(reader, i + 1); });
        require(is_copied(reader, 1), "a later operation hides that an earlier one was read");
        memory[i] = 2;
      } else {
        wait_until([&] { return is_published(lines[i], i + 1); });
        if (variant() == 1) publish_copied(reader, i + 1);
        require(memory[i] == 1, "what was copied is not what was offered");
        if (variant() != 1) publish_copied(reader, i + 1);
      }
    }
  }
};

// A reader that cannot copy from the writer's memory asks for chunks, and the writer says in the same line where they
// are.
struct AskForChunks {
  static constexpr const char* kName =
      "a line is rewritten for who asks, after it was read and before it is read again";
  static constexpr int kThreads = 2, kVariants = 4;
  PairLine_ line;
  std::array<Pipe<Atomics, 1>, 2> pipes;

  void run(int thread) { thread == 0 ? write() : read(); }
  void write() {
    line.head = head_of(1);
    publish(line, 1);
    if (variant() != 1) wait_until([&] { return asks_for_chunks(pipes[1], 1); });
    if (variant() == 2) publish_rewritten(pipes[0], 1);
    line.head = head_of(2);
    if (variant() != 2) publish_rewritten(pipes[0], 1);
  }
  void read() {
    Head head{};
    wait_until([&] { return is_published(line, 1); });
    if (variant() == 3) ask_for_chunks(pipes[1], 1);
    observe(line, 1, &head);
    require(head.sent == 1, "a line is not what was published");
    if (variant() != 3) ask_for_chunks(pipes[1], 1);
    if (variant() != 4) wait_until([&] { return is_rewritten(pipes[0], 1); });
    observe(line, 1, &head);
    require(head.sent == 2, "a line is not what was rewritten");
  }
};

// The same as Reuse, where the writer learns from the reader's own line what the reader is done with.
struct Backlog {
  static constexpr const char* kName = "a line tells truly what its writer is done with";
  static constexpr int kThreads = 2, kVariants = 1;
  PairLine_ there, back;
  Atomics::plain<uint64_t> bytes;
  Words reader;

  void run(int thread) {
    Head head{};
    if (thread == 0) {
      uint64_t known = 0;
      bytes = 1;
      publish(there, 1);
      wait_until([&] { return observe(back, 2, &head); });
      learn_from_backlog(head, 2, &known);
      if (known < 1) return;
      bytes = 3;
    } else {
      const bool found = observe(there, 1, &head);
      if (found && variant() != 1) require(bytes == 1, "the bytes are of another operation");
      if (found) publish_done(reader, 1);
      head = head_of(2);
      head.backlog = backlog(reader, 2);
      back.head = head;
      publish(back, 2);
      if (found && variant() == 1) require(bytes == 1, "the bytes are of another operation");
    }
  }
};

// Two chunks, of which one comes back empty and the other with an answer in it, in turns.
struct ChunksToAndFro {
  static constexpr const char* kName = "a chunk is filled and emptied by whom it belongs to";
  static constexpr int kThreads = 2, kVariants = 3;
  static constexpr uint64_t kChunks = 2, kAll = 4;
  std::array<Atomics::plain<uint64_t>, kChunks> chunks;
  ChunkFlow<Atomics, kChunks> asked, returned, answered;  // no more entries than chunks, as in the transport

  void run(int thread) { thread == 0 ? ask() : answer(); }

  void ask() {
    for (uint64_t i = 0; i < kAll; ++i) {
      auto chunk = static_cast<uint8_t>(i);
      if (i >= kChunks) {
        auto& flow = i % 2 == 0 ? returned : answered;
        wait_until([&] { return count_of(flow) > i / 2 - 1; });
        chunk = listed(flow, i / 2 - 1);
        if (i % 2 == 1) require(chunks[chunk] == 100 + i - kChunks, "an answer was lost");
      }
      if (variant() == 1) publish_count(asked, i + 1);
      chunks[chunk] = i;
      enlist(asked, i, chunk);
      if (variant() != 1) publish_count(asked, i + 1);
    }
  }

  void answer() {
    for (uint64_t i = 0; i < kAll; ++i) {
      wait_until([&] { return count_of(asked) > i; });
      const uint8_t chunk = listed(asked, i);
      auto& flow = i % 2 == 0 ? returned : answered;
      enlist(flow, i / 2, chunk);
      if (variant() == 2 + static_cast<int>(i % 2)) publish_count(flow, i / 2 + 1);
      require(chunks[chunk] == i, "a chunk was taken twice or lost");
      if (i % 2 == 1) chunks[chunk] = 100 + i;
      publish_count(flow, i / 2 + 1);
    }
  }
};

// A rank waits for the lines of others, without the time limit on its sleep that the transport has.
template <int kWakers>
struct Sleep {
  static constexpr const char* kName = kWakers == 1 ? "no wake-up is lost" : "no wake-up by one of several is lost";
  static constexpr int kThreads = kWakers + 1, kVariants = 4, kPreemptions = kWakers == 1 ? 1000 : 3;
  std::array<PairLine_, kWakers> lines;
  Seat<Atomics> seat;
  Bell<Atomics> bell;

  bool all_there() {
    for (const auto& line : lines) {
      if (!is_published(line, 1)) return false;
    }
    return true;
  }

  void run(int thread) {
    if (thread < kWakers) return wake(lines[static_cast<size_t>(thread)]);
    const auto look = [this] { return all_there(); };
    const auto sleep = [this](uint32_t ticket) {
      if (variant() == 1) ticket = bell.rings.load(memory_order_relaxed);  // younger than the look
      model::futex_wait(bell.rings, ticket);
    };
    const auto no_look = [] { return false; };
    while (!all_there()) {
      variant() == 2 ? sleep_unless(seat, bell, no_look, sleep) : sleep_unless(seat, bell, look, sleep);
    }
  }
  void wake(PairLine_& line) {
    if (variant() != 3) publish(line, 1);
    before_waking<Atomics>();
    if (variant() == 4 ? seat.sleepers.load(memory_order_relaxed) != 0 : must_wake(seat, bell)) {
      model::futex_wake(bell.rings);
    }
    if (variant() == 3) publish(line, 1);
  }
};

// A rank copies straight from the memory of a rank of its own process, which gives up and frees that memory. Or to the
// memory of any rank, which gives up and uses it for something else.
template <bool kWrites>
struct AbortUnderCopy {
  static constexpr const char* kName = kWrites ? "memory is not used for something else while a peer writes there"
                                               : "memory is not freed under a reader";
  static constexpr int kThreads = 2, kVariants = 2;
  static constexpr uint32_t kOwner = 1;
  Words owner, reader;
  Atomics::plain<int> memory, text;

  void run(int thread) {
    if (thread == 0) {
      text = 1;
      post_abort(owner, 5);
      if (variant() != 1) wait_until([&] { return !is_copying(reader, kOwner); });
      memory = 2;
    } else {
      for (int i = 0; i < 2; ++i) {
        const uint32_t early = variant() == 2 ? abort_of(owner) : 0;
        begin_copying(reader, kOwner);
        const uint32_t code = variant() == 2 ? early : abort_of(owner);
        require(code == 0 ? memory < 2 : text == 1, "freed memory was read");
        if (kWrites && code == 0) memory = 1;
        end_copying(reader);
      }
    }
  }
};

// A rank copies from the shared memory of another one, which gives up and writes there again. (The copy races with
// that by design, so it is made of relaxed accesses here.)
struct AbortBetweenProcesses {
  static constexpr const char* kName = "bytes that their owner took back are not reported as good";
  static constexpr int kThreads = 2, kVariants = 2;
  Words owner;
  std::array<Atomics::atomic<int>, 2> memory{1, 1};
  Atomics::plain<int> text;

  void run(int thread) {
    if (thread == 0) {
      if (variant() == 1) memory[0].store(2, memory_order_relaxed);
      text = 1;
      post_abort(owner, 5);
      for (auto& word : memory) word.store(2, memory_order_relaxed);
    } else {
      const uint32_t early = variant() == 2 ? abort_of(owner) : 0;
      const int sum = memory[0].load(memory_order_relaxed) + memory[1].load(memory_order_relaxed);
      const uint32_t code = variant() == 2 ? early : abort_of(owner);
      require(code != 0 ? text == 1 : sum == 2, "bytes that were taken back count as good");
    }
  }
};

// A rank finishes its last operation and leaves. A peer that notices reads what is there, and uses its own memory again
// that the other one has been reading.
struct Leave {
  static constexpr const char* kName = "who leaves has written everything, and reads no more";
  static constexpr int kThreads = 2, kVariants = 1;
  PairLine_ line;
  Words words;
  Atomics::plain<int> memory;

  void run(int thread) {
    if (thread == 0) {
      line.head = head_of(1);
      publish(line, 1);
      if (variant() == 1) publish_left(words, Left::closed);
      require(memory == 0, "memory was used again under its reader");
      if (variant() != 1) publish_left(words, Left::closed);
    } else if (left_of(words) != Left::no) {
      Head head{};
      require(observe(line, 1, &head) && head.sent == 1, "a line of a rank that left is missing");
      memory = 1;
    }
  }
};

// A rank dies at any step; its peer, which needs its line, reports it as lost only when the line will never come.
struct Death {
  static constexpr const char* kName = "what a rank wrote before it died counts";
  static constexpr int kThreads = 2, kVariants = 1, kMortal = 0;
  PairLine_ line;
  Words words;
  bool published = false;  // outside of the program's memory: the truth

  void run(int thread) {
    if (thread == 0) {
      line.head = head_of(1);
      publish(line, 1);
      published = true;
      publish_done(words, 1);  // a step before which it may die
    } else {
      Head head{};
      if (observe(line, 1, &head) || !model::is_dead(0)) return;
      const bool there = variant() != 1 && observe(line, 1, &head);
      require(there || !published, "a rank counts as lost although its line is there");
      require(!there || head.sent == 1, "the line of a dead rank is torn");
    }
  }
};

// A rank looks at the tensor of another one, which writes into it again as soon as nobody looks.
struct View {
  static constexpr const char* kName = "a tensor is not written under those who look at it";
  static constexpr int kThreads = 2, kVariants = 2;
  PairLine_ line;
  Viewing<Atomics> viewer;
  Atomics::plain<int> tensor;

  void run(int thread) {
    if (thread == 0) {
      if (variant() != 1) begin_viewing(viewer, 1);
      publish(line, 1);
      if (variant() == 1) begin_viewing(viewer, 1);
      if (variant() == 2) end_viewing(viewer);
      require(tensor == 0, "the tensor was written while somebody looked at it");
      if (variant() != 2) end_viewing(viewer);
    } else if (is_published(line, 1) && !is_viewing(viewer, 1)) {
      tensor = 1;
    }
  }
};

// The owner gives up, and takes its tensor back from a peer whose line it has not seen. The peer has the owner's line.
struct TakeBack {
  static constexpr const char* kName = "who gives up sees who looks at its tensor, or is seen to give up";
  static constexpr int kThreads = 2, kVariants = 2;
  Words owner;
  PairLine_ line;
  Atomics::plain<int> tensor;

  void run(int thread) {
    if (thread == 0) {
      const bool early = variant() == 1 && is_published(line, 1);
      post_abort(owner, 5);
      if (!(variant() == 1 ? early : is_published(line, 1))) tensor = 1;
    } else {
      const uint32_t early = variant() == 2 ? abort_of(owner) : 0;
      publish(line, 1);
      before_waking<Atomics>();
      if ((variant() == 2 ? early : abort_of(owner)) == 0) require(tensor == 0, "a tensor was taken back under a view");
    }
  }
};

// Operations that are only compared: the reasons of a refusal, and of a disagreement, are there when their words are.
struct Compare {
  static constexpr const char* kName = "a reason is there before the word that tells of it";
  static constexpr int kThreads = 2, kVariants = 2;
  Words words;
  Atomics::plain<int> refusal, disagreement;

  void run(int thread) {
    if (thread == 0) {
      refusal = 1;
      publish_notice(words, 1, notice(1, 0, 0));
      if (variant() == 1) publish_done(words, 1);
      disagreement = 1;
      publish_disagreement(words, 1);
      if (variant() != 1) publish_done(words, 1);
    } else {
      uint64_t known = variant() == 2 ? 1 : 0;  // a peer that was not seen to be done
      if (notice_of(words, 1) != 0) require(refusal == 1, "the reason of a refusal is missing");
      if (!is_done(words, 1, &known)) return;
      require(has_disagreement(words, 1), "a disagreement was not seen");
      require(disagreement == 1, "the reason of a disagreement is missing");
    }
  }
};

// A rank is done with an operation that it never published: only then does it count as having passed it by.
struct Pass {
  static constexpr const char* kName = "a rank that is done without a line has never written one";
  static constexpr int kThreads = 2, kVariants = 1;
  PairLine_ line;
  Words words;

  void run(int thread) {
    if (thread == 0) {
      if (variant() == 1) publish_done(words, 1);
      publish(line, 1);
      if (variant() != 1) publish_done(words, 1);
    } else {
      uint64_t known = 0;
      if (is_done(words, 1, &known)) require(is_published(line, 1), "a rank that takes part counts as passing by");
    }
  }
};

// A rank changes its proposal of survivors and commits to it, while another one reads.
struct Propose {
  static constexpr const char* kName = "a proposal is read whole, and a final one is final";
  static constexpr int kThreads = 2, kVariants = 1;
  Words words;

  void run(int thread) {
    std::array<uint64_t, 2> alive{};
    if (thread == 0) {
      for (uint64_t turn = 1; turn <= 2; ++turn) {
        if (variant() == 1 && turn == 2) commit(words);
        alive = {turn, turn};
        propose(words, alive);
      }
      if (variant() != 1) commit(words);
    } else {
      bool committed = false;
      if (!read_proposal(words, alive, &committed)) return;
      require(alive[0] == alive[1] && alive[0] != 0, "a proposal is torn");
      require(!committed || alive[0] == 2, "a proposal that is not final counts as final");
    }
  }
};

inline PacketHeader packet_of(uint64_t n) {
  PacketHeader head{};
  head.id = n;
  return head;
}

// Three packets through two places.
struct Packets {
  static constexpr const char* kName = "a packet is seen whole, and its place is written again when it was taken";
  static constexpr int kThreads = 2, kVariants = 3;
  static constexpr uint64_t kTwo = 2;
  std::array<Packet<Atomics>, kTwo> packets;
  std::array<Atomics::plain<uint64_t>, kTwo> payload;
  Mailbox<Atomics> reader;

  void run(int thread) { thread == 0 ? write() : read(); }
  void write() {
    for (uint64_t n = 1; n <= kTwo + 1; ++n) {
      const uint64_t ahead = kTwo + (variant() == 1 ? 1 : 0);
      if (n > ahead) wait_until([&] { return taken_of(reader) >= n - ahead; });
      auto& packet = packets[n % kTwo];
      packet.head = packet_of(n);
      if (variant() == 2) publish_packet(packet, n);
      payload[n % kTwo] = n;
      if (variant() != 2) publish_packet(packet, n);
    }
  }
  void read() {
    for (uint64_t n = 1; n <= kTwo + 1; ++n) {
      PacketHeader head{};
      wait_until([&] { return observe_packet(packets[n % kTwo], n, &head); });
      if (variant() == 3) publish_taken(reader, n);
      require(head.id == n && payload[n % kTwo] == n, "a packet is not what was written");
      if (variant() != 3) publish_taken(reader, n);
    }
  }
};

// A fragment of a message stands in the sender's segment, and the next one in the same memory.
struct Fragments {
  static constexpr const char* kName =
      "the memory of a fragment is not written before the answer says that it was read";
  static constexpr int kThreads = 2, kVariants = 2;
  static constexpr uint64_t kAll = 2;
  std::array<Packet<Atomics>, kAll> fragments, answers;
  Atomics::plain<uint64_t> memory;

  void run(int thread) {
    PacketHeader head{};
    for (uint64_t n = 1; n <= kAll; ++n) {
      auto &fragment = fragments[n % kAll], &answer = answers[n % kAll];
      if (thread == 0) {
        memory = n;
        fragment.head = packet_of(n);
        publish_packet(fragment, n);
        if (variant() != 1) wait_until([&] { return observe_packet(answer, n, &head); });
      } else {
        wait_until([&] { return observe_packet(fragment, n, &head); });
        if (variant() == 2) publish_packet(answer, n);
        require(memory == n, "a fragment is not what was sent");
        if (variant() != 2) publish_packet(answer, n);
      }
    }
  }
};

// The first packet: the reader does not know yet where the mailbox stands.
struct FirstPacket {
  static constexpr const char* kName = "a mailbox is made when it is shown";
  static constexpr int kThreads = 2, kVariants = 1;
  Pipe<Atomics, 1> pipe;
  Atomics::plain<int> made;

  void run(int thread) {
    if (thread == 0) {
      if (variant() == 1) publish_mailbox(pipe, 0);
      made = 1;
      if (variant() != 1) publish_mailbox(pipe, 0);
    } else if (mailbox_of(pipe) == 1) {
      require(made == 1, "a mailbox has words of something else");
    }
  }
};

}  // namespace programs
