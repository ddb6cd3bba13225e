// Connects the ranks of a bootstrap with each other over TCP. Not public.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "a2a/bootstrap.h"
#include "bootstrap/sha256.h"
#include "bootstrap/tcp/tcp_socket.h"
#include "transport/tcp/authenticated_socket.h"

namespace a2a::tcp {

struct MeshArguments {
  Rank rank = 0;
  std::string job;                  // for the texts of errors: "job 'x'"
  SocketAddress own_address;        // the others reach this rank at it; the port is of no account
  Digest key{};                     // of the job
  std::function<void()> meanwhile;  // called every few milliseconds; throws to give up
};

// Collective over the bootstrap. Returns a connection to each rank, by rank; an empty one for this rank and those that
// are `connected` already, of which both ends say so.
std::vector<AuthenticatedSocket> connect_mesh(Bootstrap& bootstrap, MeshArguments arguments,
                                              const std::vector<bool>& connected, Deadline deadline);

}  // namespace a2a::tcp
