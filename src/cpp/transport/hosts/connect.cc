#include "transport/hosts/connect.h"

#include <algorithm>

#include "transport/hosts/hosts_transport.h"

namespace a2a::hosts {
namespace {

// A bootstrap as the ranks of one host see it.
class LocalBootstrap final : public Bootstrap {
 public:
  LocalBootstrap(Bootstrap& all, const std::vector<Rank>& mates) : all_(all), mates_(mates) {}

  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) override {
    auto everything = all_.allgather(mine, deadline);
    std::vector<std::string> ours;
    for (const Rank mate : mates_) ours.push_back(std::move(everything.at(static_cast<size_t>(mate))));
    return ours;
  }
  void while_meeting() override { all_.while_meeting(); }

 private:
  Bootstrap& all_;
  const std::vector<Rank>& mates_;
};

}  // namespace

std::unique_ptr<HostTransport> connect(Rank rank, int size, Bootstrap& bootstrap, Deadline deadline) {
  if (!bootstrap.has_network()) return shm::ShmTransport::connect(rank, size, bootstrap, deadline);
  Places places = find_places(rank, size, bootstrap, deadline);
  if (places.hosts() == 1) return shm::ShmTransport::connect(rank, size, bootstrap, deadline);
  const auto network = bootstrap.network(deadline);
  const std::vector<Rank> mates = places.ranks_of(places.host_of(rank));
  const auto seat = static_cast<Rank>(places.seat_of(rank));
  LocalBootstrap here(bootstrap, mates);
  const auto base = shm::ShmTransport::connect(seat, static_cast<int>(mates.size()), here, deadline, mates);
  std::vector<Rank> seats(mates.size());
  for (size_t i = 0; i < seats.size(); ++i) seats[i] = static_cast<Rank>(i);
  return HostsTransport::make(rank, std::move(places), network, bootstrap, *base, seats, deadline);
}

}  // namespace a2a::hosts
