// The seam a backend implements: start a batch, and give up.
#pragma once

#include <memory>
#include <string_view>

#include "a2a/schedule.h"
#include "a2a/work.h"

namespace a2a {

// A transport moves bytes between the ranks of one group. It knows bytes, peers and streams, never counts, dtypes
// (beyond comparing them) or frameworks. Arguments were checked before they get here.
class A2A_API Transport {
 public:
  virtual ~Transport() = default;

  // Starts the exchange and returns at once: never waits for a peer. Operations run in the order of their numbers.
  // A batch with a refusal takes part only to tell every peer why this rank does not.
  virtual std::shared_ptr<Work> start(Batch batch, Stream stream) = 0;

  // Fails every operation in flight, here and at the peers, with Error(aborted). Never throws, never blocks.
  virtual void abort(std::string_view reason) noexcept = 0;
};

}  // namespace a2a
