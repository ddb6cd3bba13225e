// Tensors of other ranks, looked at where they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "a2a/types.h"
#include "a2a/work.h"

namespace a2a {

class Loan;

// The tensor of one rank, packed in C order. Its memory may only be read.
struct View {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  std::vector<int64_t> shape;
};

// What Communicator::allgather_views() makes: this rank's look at every rank's tensor, its own included.
//
// From that call on until every rank has released its views, an owner must neither write its tensor, nor need it back:
// its memory is not used again before, even if the owner lets go of it, closes the communicator or ends. Nothing that
// happens to a communicator touches views that are there already. A rank that dies counts as having released.
//
// Safe to use from any thread. In a forked child the views may be read, and nothing the child does is noticed.
class A2A_API Views {
 public:
  explicit Views(std::shared_ptr<Loan> loan);
  ~Views();  // releases
  Views(const Views&) = delete;
  Views& operator=(const Views&) = delete;

  // The exchange of the descriptions. The views are there once it is done.
  const std::shared_ptr<Work>& work() const;

  int size() const;
  // Of that rank, once the work is done without an error. Stays mapped as long as this object lives; what it reads
  // after release() is undefined. Throws Error(backend) when the peer described no possible tensor.
  View view(Rank rank) const;

  // Says that this rank looks at the tensors no more. Waits for nobody.
  void release() noexcept;
  bool released() const;

  // Releases, and waits until every other rank has released its views, so that this rank may write its own tensor
  // again; true then. False when the deadline passes or a signal arrives. Throws Error(aborted) in a forked child.
  bool wait_released(Deadline deadline);

 private:
  std::shared_ptr<Loan> loan_;
};

}  // namespace a2a
