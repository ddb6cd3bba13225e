// Addresses of rank 0: while the resolver hangs, gives errors, or cannot be called, and while a client has its port.
#include "bootstrap/tcp/tcp_socket.h"

#include <dlfcn.h>
#include <netdb.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "a2a/bootstrap.h"
#include "a2a/work.h"
#include "check.h"
#include "tcp.h"

namespace {

using namespace std::chrono_literals;
using a2a::Code;
using a2a::Deadline;

std::atomic<bool> silent{false};  // as a name server that does not answer
std::atomic<int> asked{0}, answered{0};

double seconds_since(Deadline::Clock::time_point begin) {
  return std::chrono::duration<double>(Deadline::Clock::now() - begin).count();
}

}  // namespace

// Replaces the C library's function in this program. Numeric addresses need no name server.
extern "C" int getaddrinfo(const char* host, const char* port, const addrinfo* hints, addrinfo** found) {
  using Call = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto call = reinterpret_cast<Call>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if ((hints->ai_flags & AI_NUMERICHOST) != 0) return call(host, port, hints, found);
  ++asked;
  while (silent) std::this_thread::sleep_for(1ms);
  ++answered;
  if (std::string_view(host) == "unreachable.example") return EAI_AGAIN;
  return call("127.0.0.1", port, hints, found);
}

namespace {

TEST("a name is looked up") {
  const auto addresses = a2a::resolve("some.host.example:4444", Deadline::after_seconds(20));
  CHECK_EQ(addresses.size(), 1);
  CHECK_EQ(addresses[0].host(), "127.0.0.1");
  const std::string why = gai_strerror(EAI_AGAIN);
  CHECK_THROWS(Code::invalid_argument, why, a2a::resolve("unreachable.example:4444", Deadline::after_seconds(20)));
}

TEST("numbers are not looked up") {
  const int before = asked;
  for (const char* address : {"127.0.0.1:80", ":80", "[::1]:80"}) {
    CHECK_EQ(a2a::resolve(address, Deadline::after_seconds(20)).size(), 1);
  }
  CHECK_EQ(asked, before);
}

TEST("a rank listens at a port that a closed connection of another rank had as a client") {
  const auto until = Deadline::after_seconds(20);
  const a2a::Socket listener = a2a::listen_at(a2a::resolve_to_listen("127.0.0.1:0", until), "127.0.0.1:0", "rank 0");
  a2a::Socket client = a2a::begin_connecting(a2a::local_address(listener.fd()));
  CHECK(a2a::await(client.fd(), POLLOUT, until, {}));
  a2a::SocketAddress from;
  CHECK(a2a::await(listener.fd(), POLLIN, until, {}));
  a2a::Socket accepted = a2a::accept_from(listener, from);
  client = a2a::Socket();  // the side that closes first keeps its port
  CHECK(a2a::await(accepted.fd(), POLLIN, until, {}));
  accepted = a2a::Socket();
  CHECK(a2a::listen_at({from}, "the client's address", "rank 0").open());
}

TEST("a name server that is silent does not outlast the deadline") {
  const int before = answered;
  silent = true;
  for (const int rank : {0, 1}) {
    const auto begin = Deadline::Clock::now();
    CHECK_THROWS(
        Code::timeout, "address 'some.host.example:4444': timed out looking up the name",
        a2a::tcp_bootstrap(rank, 2, "job", "some.host.example:4444", "0123456789abcdef", Deadline::after_seconds(0.3)));
    CHECK(seconds_since(begin) < 1);
  }
  silent = false;  // the call returns after all, but no thread waits for it
  while (answered < before + 2) std::this_thread::sleep_for(1ms);
}

TEST("a signal ends the wait for a name server") {
  const int before = answered;
  silent = true;
  static Deadline::Clock::time_point begin;
  begin = Deadline::Clock::now();
  const a2a::SignalWatch watch([] { return seconds_since(begin) > 0.1; });
  CHECK_THROWS(Code::aborted, "interrupted", a2a::resolve("some.host.example:4444", Deadline::after_seconds(20)));
  CHECK(seconds_since(begin) < 1);
  silent = false;
  while (answered == before) std::this_thread::sleep_for(1ms);
}

}  // namespace
