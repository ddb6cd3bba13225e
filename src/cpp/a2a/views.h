// Views of other ranks' tensors in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "a2a/types.h"
#include "a2a/work.h"

namespace a2a {

class Exposure;

// The tensor of one rank, packed in C order. Its memory may only be read.
struct View {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  std::vector<int64_t> shape;
};

// This rank's views of every rank's tensor, its own included. Communicator::allgather_views() makes them.
//
// From that call on until every rank has released its views, an owner must not write its tensor. The memory is not
// reused before, even if the owner frees the tensor, closes the communicator or ends. Views that exist do not depend on
// the communicator. A rank that dies counts as having released.
//
// Any thread may use it. In a forked child the views may be read; the child's releases have no effect.
class A2A_API Views {
 public:
  explicit Views(std::shared_ptr<Exposure> exposure);
  ~Views();  // releases
  Views(const Views&) = delete;
  Views& operator=(const Views&) = delete;

  // The exchange of the descriptions. The views can be read once it is done.
  const std::shared_ptr<Work>& work() const;

  int size() const;
  // Returns the view of that rank's tensor. Requires that the work is done without an error. The memory stays mapped as
  // long as this object lives; what it reads after release() is undefined. Throws Error(backend) when the peer
  // described an impossible tensor.
  View view(Rank rank) const;

  // Publishes that this rank has ended its views. Does not wait.
  void release() noexcept;
  bool released() const;

  // Releases, and waits until every other rank has released its views. Returns true then, and this rank may write its
  // own tensor again. Returns false when the deadline passes or a signal arrives. Throws Error(aborted) in a forked
  // child.
  bool wait_released(Deadline deadline);

 private:
  std::shared_ptr<Exposure> exposure_;
};

}  // namespace a2a
