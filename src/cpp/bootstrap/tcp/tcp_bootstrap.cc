// The bootstrap of ranks on any hosts: TCP, with proofs of a common secret.
#include "bootstrap/tcp/tcp_bootstrap.h"

#include "a2a/bootstrap.h"
#include "a2a/work.h"
#include "bootstrap/secret.h"

namespace a2a {

std::shared_ptr<Bootstrap> tcp_bootstrap(Rank rank, int size, const std::string& job, const std::string& address,
                                         std::string_view secret, Deadline deadline) {
  check_rank_and_size(rank, size);
  check_secret(secret);
  if (size == 1) return thread_bootstraps(1)[0];
  return rank == 0 ? tcp_hub(size, job, address, secret, deadline)
                   : tcp_spoke(rank, size, job, address, secret, deadline);
}

TcpBootstrap::TcpBootstrap(Rank rank, int size, std::string job, std::string_view secret)
    : rank_(rank), size_(size), job_(std::move(job)), network_key_(hmac_sha256(secret, "a2a key of the network")) {}

std::vector<std::string> TcpBootstrap::allgather(std::string_view mine, Deadline deadline) {
  return exclusively([&] {
    if (mine.size() > kLargestString) {
      throw error(Code::invalid_argument, "rank " + std::to_string(rank_) + " has a string of " +
                                              std::to_string(mine.size()) + " bytes; at most " +
                                              std::to_string(kLargestString) + " are exchanged");
    }
    return exchange(mine, deadline);
  });
}

Error TcpBootstrap::as_sent(const Error& failure) const {
  if (dynamic_cast<const Interrupted*>(&failure) == nullptr) return failure;
  return error(Code::aborted, "rank " + std::to_string(rank_) + " was " + failure.what());
}

std::optional<wire::Frame> TcpBootstrap::next(Channel& channel, const std::string& who) const {
  auto frame = channel.read();
  if (frame && frame->kind == wire::PieceKind::refusal) throw wire::unpack_refusal(frame->payload);
  if (channel.forged() || (frame && frame->kind == wire::PieceKind::welcome)) {
    throw error(Code::backend, who + " sent something that is no message of this job, or somebody on the way did");
  }
  if (!frame && channel.gone()) throw error(Code::peer_lost, who + " was lost while the ranks met");
  return frame;
}

}  // namespace a2a
