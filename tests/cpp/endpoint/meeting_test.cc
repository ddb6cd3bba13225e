// A meeting whose other member is the test: it sends what no endpoint sends.
#include "endpoint/meeting.h"

#include <thread>

#include "a2a/endpoint.h"
#include "bootstrap/tcp/connector.h"
#include "check.h"

namespace {

using namespace a2a;
using namespace a2a::endpoint;

// Connects to an endpoint as if it were the endpoint `me`.
Channel dial(const Handle& to, const Handle& me) {
  return connect_authenticated({.peer = "the endpoint",
                                .address = "",
                                .addresses = {to.address},
                                .secret = key_of(to, ""),
                                .job = text_of(me.id),
                                .rank = 1,
                                .size = 2,
                                .meanwhile = nullptr},
                               Deadline::after_seconds(10));
}

TEST("strangers and nonsense hold up nobody") {
  const auto one = Endpoint::create({}), two = Endpoint::create({});
  const std::vector<std::string> handles{one->handle(), two->handle()};
  const Handle first = unpack(handles[0], "", "");
  Handle stranger = first;
  stranger.id[0] ^= 1;
  std::thread late([&] {
    const Socket silent = begin_connecting(first.address);
    Channel talks = dial(first, stranger);
    talks.put(wire::piece(wire::PieceKind::last, "this is no proposal"));
    CHECK(talks.write());
    Channel part = dial(first, stranger);
    part.put(wire::piece(wire::PieceKind::part, "half of something"));
    CHECK(part.write());
    {
      const Channel gone = dial(first, stranger);
    }
    CHECK_EQ(two->connect(handles, 1, Deadline::after_seconds(10))->rank(), 1);
  });
  CHECK_EQ(one->connect(handles, 1, Deadline::after_seconds(10))->rank(), 0);
  late.join();
}

}  // namespace
