#include "transport/hosts/remote_messages.h"

#include <deque>

#include "check.h"
#include "one_rank.h"
#include "transport/shm/peers/shm_progress.h"

namespace {

using namespace a2a;
using namespace a2a::hosts;

constexpr DType kBytes{1, 8, 1};
constexpr size_t kMany = 100'000;  // more than go with the announcement
const Deadline kNow = Deadline::after_seconds(0);

// Two ranks of two hosts, and what they have told each other.
class Ends {
 public:
  std::shared_ptr<MessageWork> send(const std::string& text, int64_t tag = 0, const std::string& refusal = {}) {
    return start(0, text, tag, Deadline::never(), refusal);
  }
  std::shared_ptr<MessageWork> receive(std::string& text, int64_t tag = 0, Deadline deadline = Deadline::never()) {
    return start(1, text, tag, deadline);
  }
  RemoteMessages& operator[](Rank rank) { return (rank == 0 ? zero_ : one_).messages; }

  // What was told arrives: the latest first, where messages overtake each other. Returns whether all made sense.
  bool deliver(bool latest_first = false) {
    bool sense = true;
    while (!told_.empty()) sense &= deliver_one(latest_first);
    return sense;
  }
  bool deliver_one(bool latest = false) {
    const Told next = latest ? told_.back() : told_.front();
    latest ? told_.pop_back() : told_.pop_front();
    RemoteMessages& to = (*this)[1 - next.from];
    return next.answers ? to.handle_answer(next.from, next.number, next.rest)
                        : to.handle_sent(next.from, next.number, next.rest);
  }
  // Delivers, and moves bytes, until nothing more happens.
  bool settle() {
    bool sense = true;
    for (int step = 0; step < 3; ++step) {
      sense &= deliver();
      for (End* end : {&zero_, &one_}) end->network->advance(), end->messages.advance();
    }
    return sense;
  }

 private:
  std::shared_ptr<MessageWork> start(Rank rank, const std::string& text, int64_t tag, Deadline deadline,
                                     const std::string& refusal = {}) {
    auto* const data = reinterpret_cast<std::byte*>(const_cast<char*>(text.data()));
    const a2a::Message message{.sends = rank == 0,
                               .peer = 1 - rank,
                               .tag = tag,
                               .data = data,
                               .bytes = text.size(),
                               .dtype = kBytes,
                               .deadline = deadline,
                               .refusal = refusal};
    const auto work = std::make_shared<MessageWork>(progress_, message);
    (*this)[rank].start(work);
    return work;
  }

  struct Told {
    Rank from;
    bool answers;
    uint64_t number;
    std::string rest;
  };
  struct End {
    End(Ends& ends, Rank rank)
        : network(std::make_shared<hosts_test::LoopbackNetwork>(ends.hub_, rank)),
          messages(rank, ends.map_, network, matching, held, [&ends, rank](Rank, bool answers, uint64_t n, auto& rest) {
            ends.told_.push_back({rank, answers, n, rest});
          }) {}
    std::shared_ptr<hosts_test::LoopbackNetwork> network;
    Matching matching;
    HeldMessages held;
    RemoteMessages messages;
  };

  const HostMap map_ = hosts_test::apart(2);
  const std::shared_ptr<hosts_test::Hub> hub_ = std::make_shared<hosts_test::Hub>(2);
  const std::shared_ptr<Progress> progress_ = shm::ShmProgress::of_this_thread();
  std::deque<Told> told_;
  End zero_{*this, 0}, one_{*this, 1};
};

TEST("a message arrives whether its receive comes before it or after") {
  for (const size_t bytes : {size_t{0}, size_t{5}, kMany}) {
    for (const bool early : {false, true}) {
      const check::Note note("bytes", bytes);
      Ends ends;
      const std::string input(bytes, 'x');
      std::string output(bytes, '.');
      std::shared_ptr<MessageWork> sent, received;
      if (early) received = ends.receive(output);
      sent = ends.send(input);
      CHECK(ends.settle());
      CHECK_EQ(sent->finished(), early || bytes < kMany);  // few bytes leave at once
      if (!early) received = ends.receive(output);
      CHECK(ends.settle());
      CHECK(sent->finished() && received->finished() && received->source() == 0 && output == input);
      CHECK(!ends[0].active() && !ends[1].active());
    }
  }
}

TEST("messages that overtake each other are received in the order of their sends") {
  Ends ends;
  const std::string inputs[] = {"a", "b", std::string(kMany, 'c'), "d"};
  for (const std::string& input : inputs) ends.send(input);
  std::string outputs[] = {"?", "?", std::string(kMany, '?'), "?"};
  for (std::string& output : outputs) ends.receive(output);
  CHECK(ends.deliver(true) && ends.settle());
  for (size_t i = 0; i < 4; ++i) CHECK(outputs[i] == inputs[i]);
}

TEST("a receive of another size fails on both ranks, and nothing is written") {
  const std::string input(kMany, 'x');
  std::string output(kMany - 1, '.');
  Ends ends;
  const auto sent = ends.send(input), received = ends.receive(output);
  CHECK(ends.settle());
  constexpr auto kText = "message with tag 0: rank 0 sends 100000 elements of uint8, rank 1 receives 99999 elements";
  CHECK_THROWS(Code::mismatch, kText, sent->wait(kNow));
  CHECK_THROWS(Code::mismatch, kText, received->wait(kNow));
  CHECK_EQ(output, std::string(kMany - 1, '.'));
}

TEST("a sender that was finished already gets the complaint with its next message, once") {
  std::string output(3, '.');
  Ends ends;
  const auto sent = ends.send("four"), received = ends.receive(output);
  CHECK(ends.settle());
  sent->wait(kNow);
  CHECK_THROWS(Code::mismatch, "rank 0 sends 4 elements", received->wait(kNow));
  CHECK_THROWS(Code::mismatch, "rank 0 sends 4 elements", ends.send("abc")->wait(kNow));
  CHECK(ends.settle());
  ends.send("def");
  ends.receive(output);
  CHECK(ends.settle());
  CHECK_EQ(output, "def");
}

TEST("a send whose arguments were refused fails its receive, which is told why") {
  std::string output(3, '.');
  Ends ends;
  const auto received = ends.receive(output);
  ends.send("abc", 0, "the tensor is sparse");
  CHECK(ends.settle());
  CHECK_THROWS(Code::mismatch, "rank 0 does not take part, its arguments were refused there: the tensor is sparse",
               received->wait(kNow));
}

TEST("of the messages that nobody receives only so many are kept; then a send waits for its receive") {
  constexpr int kKept = 256;
  Ends ends;
  std::vector<std::shared_ptr<MessageWork>> sent;
  for (int i = 0; i < kKept + 2; ++i) sent.push_back(ends.send("x"));
  CHECK(ends.settle());
  for (int i = 0; i < kKept + 2; ++i) CHECK_EQ(sent[static_cast<size_t>(i)]->finished(), i < kKept);
  std::string output(1, '.');
  for (int i = 0; i < kKept + 1; ++i) ends.receive(output);
  CHECK(ends.settle());
  CHECK(sent[kKept]->finished() && !sent[kKept + 1]->finished());
  const auto next = ends.send("y");  // the receiver has said that it took those before
  CHECK(ends.settle());
  CHECK(next->finished());
}

TEST("messages and answers that no rank would send are refused") {
  Ends sender;
  sender.send("abc");
  std::string text(kMany, 'x');
  sender.send(text);
  CHECK(!sender[0].handle_answer(1, 2, "?"));
  const auto answer = [&](uint32_t reply, uint64_t number) {
    return sender[0].handle_answer(1, number, object_bytes(reply));
  };
  CHECK(!answer(1, 3));                  // wanted, but there is no such message
  CHECK(!answer(3, 2));                  // taken, but its bytes were not sent
  CHECK(!answer(1, 2));                  // it has its answer
  CHECK(answer(4, 1) && !answer(4, 2));  // the number of messages taken that came with their announcements
  CHECK(!answer(9, 1));
  Ends receiver;
  CHECK(!receiver[1].handle_sent(0, 1, "short"));
  CHECK(receiver[1].handle_sent(0, 2, "early"));
  CHECK(!receiver[1].handle_sent(0, 2, "again"));
}

TEST("when it breaks, messages fail with that error, and their memory is kept as long as the network has it") {
  const std::string input(kMany, 'x');
  std::string output(kMany, '.');
  for (const bool clings : {false, true}) {
    hosts_test::clings = clings;
    Ends ends;
    const auto moving = ends.receive(output, 7);
    ends.send(input, 7);
    CHECK(ends.deliver_one());  // the network has the memory of the receive, and the sender does not know it yet
    const auto waiting = ends.receive(output, 8);
    CHECK(ends[1].needing(0, false) == moving && ends[1].needing(1, true) == nullptr);
    ends[1].fail_all(Error(Code::peer_lost, "rank 0 is gone"));
    ends[1].fail_all(Error(Code::aborted, "too late"));
    for (const auto& work : {moving, waiting}) CHECK_THROWS(Code::peer_lost, "rank 0 is gone", work->wait(kNow));
    CHECK(!ends[1].active() && waiting->let_go());
    CHECK_EQ(moving->let_go(), !clings);
    CHECK(ends.deliver() && moving->let_go());
  }
  hosts_test::clings = false;
}

TEST("the message that is late is named, and no other") {
  Ends ends;
  std::string output(1, '.');
  const auto now = Deadline::Clock::now();
  const auto hurried = ends.receive(output, 1, Deadline::at(now)), patient = ends.receive(output, 2);
  CHECK(ends[1].expired(now) == hurried && ends[1].expired(now - std::chrono::seconds(1)) == nullptr);
  ends.send("x", 1);
  CHECK(ends.settle() && hurried->finished() && ends[1].expired(now) == nullptr);
}

}  // namespace
