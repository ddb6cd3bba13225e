// One rank's part in allgather_views. The transport of host memory makes it.
#pragma once

#include <memory>

#include "a2a/views.h"
#include "core/schedule.h"

namespace a2a {

// The tensor of this rank, which the peers may view, and this rank's views of theirs. Alive until the last view has
// ended.
class Exposure {
 public:
  virtual ~Exposure() = default;

  // Puts the exchange of the tensors' descriptions into the batch, as sends and receives.
  virtual void describe(Batch& batch) = 0;
  // Called when that operation has started.
  virtual void started(std::shared_ptr<Work> work) = 0;
  virtual const std::shared_ptr<Work>& work() const = 0;

  virtual int size() const = 0;
  // Throws Error(invalid_argument) when this rank has ended its views, Error(backend) when the peer described an
  // impossible tensor.
  virtual View view(Rank rank) const = 0;
  virtual bool viewing() const = 0;
  virtual void end_viewing() noexcept = 0;
  // Waits until no peer views this rank's tensor; false when the deadline passes or a signal arrives.
  virtual bool wait_returned(Deadline deadline) = 0;
};

}  // namespace a2a
