#include "endpoint/proposal.h"

#include <cstring>

#include "bootstrap/tcp/frames.h"
#include "runtime/object_bytes.h"

namespace a2a::endpoint {
namespace {

// The fixed part of a proposal on its way.
struct ProposalHead {
  uint32_t version = 1;
  Rank place = 0;
  int64_t generation = 0, former = 0;
  uint64_t connection = 0;
  Digest list{}, former_list{};
};

}  // namespace

std::string pack(const Proposal& p) {
  ProposalHead head;
  head.place = p.place;
  head.generation = p.generation;
  head.former = p.former;
  head.connection = p.connection;
  head.list = p.list;
  head.former_list = p.former_list;
  std::string failed;
  for (const Attempts& attempts : p.failed) failed += object_bytes(attempts);
  return wire::pack_strings({std::string(object_bytes(head)), p.words, failed});
}

std::optional<Proposal> unpack_proposal(const std::string& text) {
  ProposalHead head;
  const auto parts = wire::unpack_strings(text, 3);
  if (!parts || (*parts)[0].size() != sizeof(head) || (*parts)[2].size() % sizeof(Attempts) != 0) return std::nullopt;
  std::memcpy(&head, (*parts)[0].data(), sizeof(head));
  if (head.version != ProposalHead().version) return std::nullopt;
  std::vector<Attempts> failed((*parts)[2].size() / sizeof(Attempts));
  if (!failed.empty()) std::memcpy(failed.data(), (*parts)[2].data(), (*parts)[2].size());
  return Proposal{.generation = head.generation,
                  .former = head.former,
                  .former_list = head.former_list,
                  .place = head.place,
                  .connection = head.connection,
                  .list = head.list,
                  .words = (*parts)[1],
                  .failed = std::move(failed)};
}

}  // namespace a2a::endpoint
