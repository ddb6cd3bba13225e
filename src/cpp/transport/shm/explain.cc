// Tells users what this transport does on this machine, and why.
#include <algorithm>
#include <iterator>

#include "transport/shm/copy/calibration.h"
#include "transport/shm/shm_transport.h"

namespace a2a::shm {
namespace {

// Answers for a kind of memory, without an array of it.
class Supposed final : public Probe {
 public:
  Supposed(Membership& m, bool shared, bool huge) : m_(m), shared_(shared), huge_(huge) {}

  bool in_segment() override { return shared_; }
  bool in_huge_pages() override { return huge_; }
  bool present() override { return true; }
  size_t cma_pays_from() override { return m_.cma_pays_from(); }

 private:
  Membership& m_;
  const bool shared_, huge_;
};

const char* to_string(Kind kind) {
  switch (kind) {
    case Kind::none:
      return "none";
    case Kind::inlined:
      return "inlined";
    case Kind::staged:
      return "staged";
    case Kind::shared:
      return "shared";
    case Kind::pointer:
      return "pointer";
    case Kind::cma:
      return "cma";
    case Kind::refused:
      return "refused";
  }
  return "";
}

}  // namespace

bool ShmTransport::reads_everywhere() {
  for (Rank peer = 0; peer < size(); ++peer) {
    if (peer == membership_.rank()) continue;
    const LocalPeer& host = *membership_.peer(peer).host;
    if (!host.same_process && !(host.cma_from && host.cma_to)) return false;
  }
  return true;
}

HostFacts ShmTransport::facts() {
  std::lock_guard lock(membership_.progress().mutex());
  const Surroundings& around = membership_.surroundings();
  const bool cma = reads_everywhere();
  const Machine& machine = membership_.machine();
  return {.ranks = around.ranks,
          .cpus = around.cpus,
          .oversubscribed = around.oversubscribed(),
          .cma = cma,
          .hosts = 1,
          .messages = 0,
          .direct_min = direct_min(machine),
          .cma_min = cma ? cma_min(machine, ChunkShape::of(around.ranks).capacity(), cma_pays_from()) : SIZE_MAX,
          .stream_min = stream_min(machine)};
}

std::vector<WayOfBytes> ShmTransport::ways(size_t bytes) {
  std::lock_guard lock(membership_.progress().mutex());
  const size_t all = bytes * static_cast<size_t>(size());
  const Load load{all, all, 0};
  const Route route{.bytes = bytes,
                    .inline_bytes = membership_.block().inline_bytes(),
                    .chunk_bytes = ChunkShape::of(size()).capacity(),
                    .same_process = membership_.threads(),
                    .cma = reads_everywhere()};
  Route message = route;
  message.inline_bytes = kPacketPayload;
  struct {
    const char* memory;
    bool shared, huge;
  } const kinds[] = {{"shared memory", true, true},
                     {"private memory in huge pages", false, true},
                     {"private memory in small pages", false, false}};
  std::vector<WayOfBytes> ways, messages;
  for (const auto& kind : kinds) {
    Supposed memory(membership_, kind.shared, kind.huge);
    const Choice choice = choose_way(route, load, membership_.machine(), memory);
    ways.push_back({kind.memory, to_string(choice.kind), choice.reason});
    const Choice sent = choose_way_of_message(message, {}, membership_.machine(), memory);
    messages.push_back({std::string("message of ") + kind.memory, to_string(sent.kind), sent.reason});
  }
  std::ranges::move(messages, std::back_inserter(ways));
  return ways;
}

}  // namespace a2a::shm
