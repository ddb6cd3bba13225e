// The bootstrap of ranks that are processes of one host: an abstract Unix socket.
#include "a2a/bootstrap.h"
#include "bootstrap/sockets.h"
#include "bootstrap/unix/packet.h"
#include "bootstrap/user.h"

namespace a2a {

std::shared_ptr<Bootstrap> unix_bootstrap(Rank rank, int size, const std::string& job, Deadline deadline) {
  check_rank_and_size(rank, size);
  if (size == 1) return thread_bootstraps(1)[0];
  if (!ids_tell_users_apart()) {
    // Any process may connect, as over TCP, so the same proofs are required.
    return tcp_bootstrap(rank, size, job, "@" + local::name_of(job), secret_instead_of_ids(), deadline);
  }
  return rank == 0 ? local::hub(size, job, deadline) : local::spoke(rank, size, job, deadline);
}

}  // namespace a2a
