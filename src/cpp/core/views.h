// One rank's part in allgather_views, as the transport of host memory makes it.
#pragma once

#include <memory>

#include "a2a/views.h"
#include "core/schedule.h"

namespace a2a {

// A tensor that is shown to the peers, and a look at theirs. Alive until nobody looks any more.
class Loan {
 public:
  virtual ~Loan() = default;

  // What the ranks tell each other of their tensors, as the sends and receives of an operation.
  virtual void describe(Batch& batch) = 0;
  // That operation has started.
  virtual void started(std::shared_ptr<Work> work) = 0;
  virtual const std::shared_ptr<Work>& work() const = 0;

  virtual int size() const = 0;
  // Throws Error(invalid_argument) when this rank looks no more, Error(backend) when the peer described no possible
  // tensor.
  virtual View view(Rank rank) const = 0;
  virtual bool viewing() const = 0;
  virtual void end_viewing() noexcept = 0;
  // Waits until no peer looks at this rank's tensor; false when the deadline passes or a signal arrives.
  virtual bool wait_returned(Deadline deadline) = 0;
};

}  // namespace a2a
