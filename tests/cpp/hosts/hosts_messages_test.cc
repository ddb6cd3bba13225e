// Messages to and from ranks of other hosts that do not come.
#include <array>
#include <span>
#include <thread>

#include "check.h"
#include "one_rank.h"

namespace {

using namespace a2a;
using namespace a2a::hosts;
using hosts_test::OneRank;

std::array<std::byte, 100'000> memory;

Deadline soon() { return Deadline::after_seconds(10); }

std::shared_ptr<MessageWork> start(OneRank& rank, bool sends, Rank peer, double timeout = 5) {
  return rank.transport().post({.sends = sends,
                                .peer = peer,
                                .tag = 7,
                                .data = memory.data(),
                                .bytes = memory.size(),
                                .dtype = {1, 8, 1},
                                .deadline = Deadline::after_seconds(timeout)});
}
std::shared_ptr<MessageWork> receive(OneRank& rank, Rank peer, double timeout = 5) {
  return start(rank, false, peer, timeout);
}

TEST("a message that does not come in time breaks the communicator, and names the rank that is missing") {
  OneRank rank(3), anybody(3);
  const auto waiting = receive(rank, 2);
  CHECK_THROWS(Code::timeout,
               "recv from rank 1 with tag 7: timeout on rank 0, which still waits for rank 1 (on another host)",
               receive(rank, 1, 0.03)->wait(soon()));
  CHECK_THROWS(Code::timeout, "recv from rank 1 with tag 7", waiting->wait(soon()));
  CHECK_THROWS(Code::timeout, "send to rank 1 with tag 7: the communicator is broken: recv from rank 1",
               start(rank, true, 1)->wait(soon()));
  CHECK_THROWS(Code::timeout, "recv from any rank with tag 7: timeout on rank 0, which still waits for it",
               receive(anybody, kAnySource, 0.03)->wait(soon()));
}

TEST("a message of a process that is gone is lost, also where any rank might send it") {
  for (const Rank peer : {1, kAnySource}) {
    OneRank rank(3);
    rank.hub().losses[1] = {Deadline::Clock::now(), "its connection was closed"};
    CHECK_THROWS(Code::peer_lost, "rank 0 lost rank 1 (on another host)", receive(rank, peer)->wait(soon()));
  }
}

TEST("a message may come for a while after its rank has left; then it is lost, whatever else is waited for") {
  OneRank rank(3);
  const auto any = receive(rank, kAnySource), other = receive(rank, 2), one = receive(rank, 1);
  rank.post(1, MessageKind::left, 0);
  CHECK(!one->wait_until(Deadline::after_seconds(0.02)));
  CHECK_THROWS(Code::peer_lost, "recv from rank 1 with tag 7: rank 0 waits for a rank that has left",
               one->wait(soon()));
}

TEST("a message from any rank is lost when nobody is left, and not before") {
  OneRank rank(3);
  const auto any = receive(rank, kAnySource);
  rank.post(1, MessageKind::left, 0);
  CHECK(!any->wait_until(Deadline::at(Deadline::Clock::now() + kRepeatTimeout * 6 / 5)));
  rank.post(2, MessageKind::left, 0);
  CHECK_THROWS(Code::peer_lost, "recv from any rank with tag 7: rank 0 waits for a rank that has left",
               any->wait(soon()));
}

TEST("ranks that leave do not end a receive from any rank while one may send, on this host or another") {
  for (const Rank sender : {1, 2, kAnySource}) {
    hosts_test::on_hosts("a,a,b", 3, [&](Communicator& comm) {
      int32_t number = comm.rank();
      const std::span<int32_t> data(&number, 1);
      if (comm.rank() == 0) {
        if (sender != kAnySource) return void(CHECK(a2a::recv(comm, data) == sender && number == sender));
        CHECK_THROWS(Code::peer_lost, "recv from any rank", a2a::recv(comm, data));
      } else if (comm.rank() == sender) {
        std::this_thread::sleep_for(sender == 1 ? kRepeatTimeout * 13 / 10 : kRepeatTimeout / 3);  // the other has left
        a2a::send(comm, std::span<const int32_t>(data), 0);
      }
    });
  }
}

TEST("a send that no receive has taken is named") {
  OneRank rank(2);
  CHECK_EQ(rank.transport().unreceived(), "");
  start(rank, true, 1);
  CHECK_EQ(rank.transport().unreceived(), "send to rank 1 with tag 7");
  rank.transport().abort("enough");
  CHECK_EQ(rank.transport().unreceived(), "");
}

}  // namespace
