// Messages of one rank: which receive takes which message, and which message begins when.
#include "core/message.h"

#include "check.h"
#include "core/facts.h"

namespace {

using namespace a2a;

struct Arrived final : Incoming {
  Arrived(Rank from, int64_t with, uint64_t length) {
    source = from, tag = with, bytes = length;
    dtype = pack(DType{});
  }
  void meet() override { ++met; }
  int met = 0;
};

std::shared_ptr<MessageWork> message(bool sends, Rank peer, int64_t tag, size_t bytes = 4) {
  return std::make_shared<MessageWork>(nullptr,
                                       Message{.sends = sends, .peer = peer, .tag = tag, .bytes = bytes, .dtype = {}});
}
const auto recv = [](Rank peer, int64_t tag) { return message(false, peer, tag); };
const auto send = [](Rank peer, int64_t tag) { return message(true, peer, tag); };

TEST("a message has a name") {
  CHECK_EQ(name_of(Message{.sends = true, .peer = 2, .tag = 5, .dtype = {}}), "send to rank 2 with tag 5");
  CHECK_EQ(name_of(Message{.peer = 2, .tag = 5, .dtype = {}}), "recv from rank 2 with tag 5");
  CHECK_EQ(name_of(Message{.peer = kAnySource, .tag = 0, .dtype = {}}), "recv from any rank with tag 0");
}

TEST("a message goes to the first receive with its source and tag, in the order of the sends") {
  Matching matching;
  const auto other_tag = recv(1, 6), other_rank = recv(2, 5), any = recv(kAnySource, 5), exact = recv(1, 5);
  for (const auto& receive : {other_tag, other_rank, any, exact}) matching.post(receive);
  const auto first = std::make_shared<Arrived>(1, 5, 4), second = std::make_shared<Arrived>(1, 5, 4);
  matching.arrive(first);
  matching.arrive(second);
  CHECK(first->receive == any && second->receive == exact && first->met == 1);
  const auto early = std::make_shared<Arrived>(3, 5, 4), late = std::make_shared<Arrived>(3, 5, 4);
  matching.arrive(early);
  matching.arrive(late);
  CHECK(early->met == 0);
  const auto receive = recv(3, 5);
  matching.post(receive);
  CHECK(early->receive == receive && late->receive == nullptr);
  const auto next = recv(3, 5);
  matching.post(next);
  CHECK(late->receive == next && early->met == 1 && late->met == 1);
  CHECK(matching.waits());  // other_tag and other_rank
  other_tag->fail(Error(Code::aborted, ""));
  other_rank->finish(2);
  matching.prune();
  CHECK(!matching.waits());
}

TEST("a message does not begin before an earlier one with which it could be confused") {
  HeldMessages held;
  std::vector<std::shared_ptr<MessageWork>> begun;
  const auto begin = [&](const auto& work) { held.begin(work, [&](const auto& one) { begun.push_back(one); }); };
  const auto blocker = send(9, 9), first = send(1, 5);
  first->predecessors().add(blocker);
  const auto same = send(1, 5), other_tag = send(1, 6), other_peer = send(2, 5), other_way = recv(1, 5);
  for (const auto& work : {first, same, other_tag, other_peer, other_way}) begin(work);
  CHECK(begun == std::vector({other_tag, other_peer, other_way}));
  CHECK(!held.release());
  blocker->finish(9);
  CHECK(held.release());
  CHECK(begun.size() == 5 && begun[3] == first && begun[4] == same);
  CHECK(!held.release());
}

TEST("a message that has failed does not begin, and holds up no other") {
  HeldMessages held;
  const auto blocker = send(9, 9), first = send(1, 5), second = send(1, 5);
  first->predecessors().add(blocker);
  std::vector<std::shared_ptr<MessageWork>> begun;
  for (const auto& work : {first, second}) held.begin(work, [&](const auto& one) { begun.push_back(one); });
  first->fail(Error(Code::timeout, "late"));
  CHECK(held.release());
  CHECK(begun == std::vector({second}));
}

TEST("a mismatched receive: the error has bytes, dtypes and reasons") {
  Arrived incoming(1, 5, 4);
  incoming.receive = recv(1, 5);
  CHECK(!disagreement(incoming, 1, 0).has_value());
  incoming.bytes = 8;
  const std::string text = disagreement(incoming, 1, 0).value_or("");
  CHECK(text.find("rank 1 sends 8") != std::string::npos && text.find("rank 0 receives 4") != std::string::npos);
  incoming.bytes = 4;
  incoming.dtype = pack(DType{2, 8, 1});
  CHECK(disagreement(incoming, 1, 0).has_value());
  incoming.receive =
      std::make_shared<MessageWork>(nullptr, Message{.peer = 1, .tag = 5, .dtype = {}, .refusal = "no tensor"});
  CHECK(disagreement(incoming, 1, 0).value_or("").find("rank 0 does not take part") != std::string::npos);
}

TEST("the first send that goes on is named") {
  const auto receive = recv(1, 4), done = send(1, 5), open = send(1, 6);
  done->finish(1);
  const std::vector works{receive, done, open};
  CHECK_EQ(first_send(works), "send to rank 1 with tag 6");
  CHECK_EQ(first_send(std::span(works).first(2)), "");
}

TEST("a tensor with gaps is packed when a send begins, and filled when a receive ends") {
  std::array<std::byte, 8> memory{};
  for (size_t i = 0; i < 8; ++i) memory[i] = std::byte(i);
  const std::vector<int64_t> shape{4}, step{2};
  const auto with_gaps = [&](bool sends) {
    auto packed = std::make_shared<PackedTensor>(memory.data(), Strides(TensorLayout{shape, step, 1}),
                                                 std::make_unique<std::byte[]>(4));
    Message message{.sends = sends, .peer = 1, .data = packed->packed.get(), .bytes = 4, .dtype = {}};
    message.packed = std::move(packed);
    return std::make_shared<MessageWork>(nullptr, message);
  };
  const auto out = with_gaps(true);
  out->begin();
  for (int i = 0; i < 4; ++i) CHECK_EQ(std::to_integer<int>(out->message().data[i]), 2 * i);
  const auto in = with_gaps(false);
  in->begin();
  for (int i = 0; i < 4; ++i) in->message().data[i] = std::byte(10 + i);
  in->finish(1);
  CHECK(memory[0] == std::byte{10} && memory[1] == std::byte{1} && memory[6] == std::byte{13});
}

}  // namespace
