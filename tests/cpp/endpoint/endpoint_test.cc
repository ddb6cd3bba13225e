// Groups of endpoints in C++, with threads as ranks.
#include "a2a/endpoint.h"

#include <thread>

#include "check.h"

namespace {

using namespace a2a;

Endpoint::Options over_tcp() { return {.address = "127.0.0.1", .secret = "a secret of 16 bytes", .host = ""}; }

// Runs body(rank) in a thread for each rank.
template <class Body>
void run(int n, Body&& body) {
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < n; ++rank) threads.emplace_back([&, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

TEST("ranks meet in one generation after the other") {
  for (const Endpoint::Options& options : {Endpoint::Options(), over_tcp()}) {
    constexpr int kRanks = 3;
    std::vector<std::shared_ptr<Endpoint>> endpoints;
    std::vector<std::string> handles;
    for (int i = 0; i < kRanks; ++i) {
      endpoints.push_back(Endpoint::create(options));
      handles.push_back(endpoints.back()->handle());
    }
    run(kRanks, [&](Rank rank) {
      Endpoint& endpoint = *endpoints[static_cast<size_t>(rank)];
      CHECK_EQ(endpoint.generation(), -1);
      std::shared_ptr<Communicator> former;
      for (int64_t generation = 0; generation < 5; ++generation) {
        std::vector<Rank> joined{7};
        const auto comm = endpoint.connect(handles, generation, Deadline::after_seconds(20), &joined);
        CHECK(joined.empty());
        CHECK_EQ(endpoint.generation(), generation);
        std::vector<int> send(1, rank), recv(kRanks);
        allgather<int>(*comm, send, recv);
        CHECK_EQ(recv, std::vector<int>({0, 1, 2}));
        if (former != nullptr) CHECK_THROWS(Code::aborted, "is over", former->barrier());
        former = comm;
      }
      CHECK_THROWS(Code::invalid_argument, "already used", endpoint.connect(handles, 3));
    });
  }
}

TEST("wrong options of an endpoint") {
  CHECK_THROWS(Code::invalid_argument, "requires a secret",
               Endpoint::create({.address = "127.0.0.1", .secret = "", .host = ""}));
  CHECK_THROWS(Code::invalid_argument, "16", Endpoint::create({.address = "", .secret = "short", .host = ""}));
}

}  // namespace
