#include "transport/shm/neighbour.h"

#include <poll.h>
#include <unistd.h>

#include <string>

#include "a2a/process.h"

namespace a2a::shm {

Neighbour::~Neighbour() {
  if (host == nullptr) return;
  for (Fd* fd : {&socket, &pidfd}) {
    if (host->inherited()) {
      fd->release();  // closed when the child was forked; the number may be in use again
    } else if (fd->get() >= 0) {
      host->unguard(fd->get());
    }
  }
}

Block Neighbour::block(uint64_t offset, int size) const {
  const size_t needed = Block::bytes(size);
  if (offset % alignof(Line) != 0 || offset > bytes || bytes - offset < needed) {
    throw Error(Code::backend, "shared memory: a peer named a block outside of its segment");
  }
  return Block(const_cast<std::byte*>(base) + offset, size);
}

bool Neighbour::map_outputs() {
  if (outputs == nullptr && !same_process && !tried_to_map) {
    tried_to_map = true;
    writable_segment = segment.writable_twin();
    outputs = writable_segment.base();
  }
  return outputs != nullptr;
}

bool Neighbour::gone() {
  if (same_process || lost.load(std::memory_order_relaxed)) return lost.load(std::memory_order_relaxed);
  // A pidfd is readable once the process has ended; the socket hangs up then, and also when a process that cannot be
  // seen from here ends. Both at once, because a forked child of the peer may hold the socket open.
  pollfd fds[2] = {{socket.get(), POLLIN | POLLRDHUP, 0}, {pidfd.get(), POLLIN, 0}};
  if (::poll(fds, 2, 0) > 0 && ((fds[0].revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0 || fds[1].revents != 0)) {
    lost.store(true, std::memory_order_relaxed);
  }
  return lost.load(std::memory_order_relaxed);
}

std::string Neighbour::state() const {
  if (same_process) return "a thread of this process";
  if (pid == 0) return lost ? "exited" : "alive";
  if (lost) return "pid " + std::to_string(pid) + ", exited";
  return process_in_words(pid);
}

}  // namespace a2a::shm
