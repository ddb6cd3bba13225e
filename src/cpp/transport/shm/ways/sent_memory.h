// What choose_way() has to know of the memory that goes to a peer.
#pragma once

#include <optional>
#include <span>

#include "transport/shm/copy/pages.h"
#include "transport/shm/peers/membership.h"
#include "transport/shm/policy/choose.h"

namespace a2a::shm {

// All memory that an operation or a message sends, and what is known of it.
struct Sends {
  std::span<const Run> runs;
  HugePages huge_pages;
  std::optional<bool> present;  // are_present() of all of it

  void begin(std::span<const Run> all) {
    runs = all;
    present.reset();
  }
};

class SentMemory final : public Probe {
 public:
  // `runs` go to the peer.
  SentMemory(Membership& m, std::span<const Run> runs, Sends& all) : m_(m), runs_(runs), all_(all) {}

  bool in_segment() override;
  bool in_huge_pages() override { return all_.huge_pages.in(all_.runs); }
  bool present() override;
  size_t cma_pays_from() override { return m_.cma_pays_from(); }

 private:
  Membership& m_;
  const std::span<const Run> runs_;
  Sends& all_;
};

}  // namespace a2a::shm
