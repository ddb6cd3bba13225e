// The transport of one host, without a communicator, with ranks as threads.
#include "transport/shm/shm_transport.h"

#include <latch>

#include "a2a/bootstrap.h"
#include "check.h"

namespace {

using namespace a2a;
using namespace a2a::shm;

using Body = std::function<void(Rank, ShmTransport&, Bootstrap&)>;

void as_group(int n, const Body& body) {
  const auto bootstraps = thread_bootstraps(n);
  check::threads(n, [&](int rank) {
    Bootstrap& bootstrap = *bootstraps[static_cast<size_t>(rank)];
    const auto transport = ShmTransport::connect(rank, n, bootstrap, Deadline::after_seconds(20));
    body(rank, *transport, bootstrap);
    bootstrap.allgather("", Deadline::after_seconds(20));  // nobody leaves before the others have looked
  });
}

// An exchange with a neighbour to which each rank sends its number.
Batch ring(uint64_t number, Rank rank, int size, uint64_t* mine, uint64_t* theirs) {
  Batch batch;
  batch.signature.number = number;
  batch.deadline = Deadline::after_seconds(20);
  batch.sends = {{(rank + 1) % size, reinterpret_cast<std::byte*>(mine), sizeof(*mine)}};
  batch.recvs = {{(rank + size - 1) % size, reinterpret_cast<std::byte*>(theirs), sizeof(*theirs)}};
  return batch;
}

TEST("operations run in the order of their numbers, in a derived group as well") {
  as_group(3, [](Rank rank, ShmTransport& transport, Bootstrap& bootstrap) {
    std::array<uint64_t, 3> mine{}, theirs{};
    std::vector<std::shared_ptr<Work>> works;
    for (uint64_t i = 0; i < 3; ++i) {
      mine[i] = 10 * i + static_cast<uint64_t>(rank);
      works.push_back(transport.start(ring(i + 1, rank, 3, &mine[i], &theirs[i])));
    }
    works.back()->wait();
    for (uint64_t i = 0; i < 3; ++i) {
      CHECK(works[i]->done());
      CHECK_EQ(theirs[i], 10 * i + static_cast<uint64_t>((rank + 2) % 3));
    }
    const std::array<Rank, 3> members{2, 1, 0};
    struct Renumbered final : Bootstrap {
      Renumbered(Bootstrap& of) : inner(of) {}
      std::vector<std::string> allgather(std::string_view text, Deadline deadline) override {
        auto all = inner.allgather(text, deadline);
        std::ranges::reverse(all);
        return all;
      }
      Bootstrap& inner;
    } reversed(bootstrap);
    const auto derived = transport.derive(members, reversed, Deadline::after_seconds(20));
    uint64_t number = static_cast<uint64_t>(rank), other = 9;
    derived->start(ring(1, 2 - rank, 3, &number, &other))->wait();
    CHECK_EQ(other, static_cast<uint64_t>((rank + 1) % 3));
    derived->leave(Left::closed);
    bootstrap.allgather("", Deadline::after_seconds(20));
  });
}

TEST("what breaks it on one rank breaks it on all, with the same error") {
  as_group(2, [](Rank rank, ShmTransport& transport, Bootstrap& bootstrap) {
    CHECK(!transport.broken() && !transport.failed());
    bootstrap.allgather("", Deadline::after_seconds(20));
    if (rank == 0) transport.fail(Error(Code::backend, "the disk is full"));
    bootstrap.allgather("", Deadline::after_seconds(20));
    uint64_t number = 0, other = 0;
    if (rank == 1) {
      CHECK_THROWS(Code::backend, "the disk is full", transport.start(ring(1, rank, 2, &number, &other))->wait());
    }
    CHECK(transport.broken().has_value() && transport.failed());
  });
}

TEST("a peer that leaves is lost to operations that need it") {
  as_group(2, [](Rank rank, ShmTransport& transport, Bootstrap& bootstrap) {
    CHECK(!transport.lost_peer() && !transport.peer_died());
    bootstrap.allgather("", Deadline::after_seconds(20));
    if (rank == 0) transport.leave(Left::dropped);
    bootstrap.allgather("", Deadline::after_seconds(20));
    uint64_t number = 0, other = 0;
    if (rank == 1) {
      CHECK(transport.lost_peer().has_value() && !transport.peer_died());
      CHECK_THROWS(Code::peer_lost, "rank 0", transport.start(ring(1, rank, 2, &number, &other))->wait());
    }
  });
}

TEST("a send that no receive has taken is named") {
  as_group(2, [](Rank rank, ShmTransport& transport, Bootstrap& bootstrap) {
    CHECK_EQ(transport.unreceived(), "");
    std::vector<std::byte> data(100'000);  // too many for a letter
    const Message message{
        .sends = rank == 0, .peer = 1 - rank, .tag = 7, .data = data.data(), .bytes = data.size(), .dtype = {}};
    std::shared_ptr<MessageWork> work;
    if (rank == 0) {
      work = transport.post(message);
      CHECK_EQ(transport.unreceived(), "send to rank 1 with tag 7");
    }
    bootstrap.allgather("", Deadline::after_seconds(20));
    if (rank == 1) work = transport.post(message);
    work->wait(Deadline::after_seconds(20));
    CHECK_EQ(transport.unreceived(), "");
  });
}

TEST("ways() and whereabouts()") {
  as_group(2, [](Rank rank, ShmTransport& transport, Bootstrap&) {
    CHECK_EQ(transport.size(), 2);
    for (const WayOfBytes& way : transport.ways(16)) CHECK_EQ(way.way, "inlined");
    const auto large = transport.ways(size_t{8} << 20);
    CHECK(std::ranges::any_of(large, [](const WayOfBytes& way) { return way.way == "pointer"; }));  // threads
    CHECK(transport.whereabouts().find("rank " + std::to_string(1 - rank)) != std::string::npos);
  });
}

TEST("refusal() returns a peer's refusal of the next operation") {
  as_group(2, [](Rank rank, ShmTransport& transport, Bootstrap& bootstrap) {
    Batch refused;
    refused.signature.number = 1;
    refused.refusal = "counts[1] = -1";
    Signature next;
    next.number = 1;
    if (rank == 0) transport.start(std::move(refused));
    bootstrap.allgather("", Deadline::after_seconds(20));
    if (rank == 1) {
      const auto error = transport.refusal(next);
      CHECK(error.has_value() && std::string(error->what()).find("counts[1] = -1") != std::string::npos);
    }
  });
}

}  // namespace
