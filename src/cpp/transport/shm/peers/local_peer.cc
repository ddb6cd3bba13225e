#include "transport/shm/peers/local_peer.h"

#include <poll.h>

#include <string>

#include "runtime/process.h"

namespace a2a::shm {
namespace {

bool extend(Mapping& memory, size_t bytes, uint64_t where, uint64_t n, std::atomic<size_t>* open) {
  if (where > bytes || bytes - where < n || !memory.reach(where + n)) return false;
  open->store(memory.open(), std::memory_order_relaxed);
  return true;
}

}  // namespace

LocalPeer::~LocalPeer() {
  if (own_memory == nullptr) return;
  for (Descriptor* fd : {&socket, &pidfd}) {
    if (own_memory->inherited()) {
      fd->release();  // closed at the fork; the number may be in use again
    } else if (fd->fd() >= 0) {
      keep_in_child(fd->fd());
    }
  }
}

bool LocalPeer::reach_further(uint64_t where, uint64_t n) {
  return extend(same_process ? ProcessMemory::get().arena().mapping() : segment, bytes, where, n, &open);
}

bool LocalPeer::reach_further_in_common(uint64_t where, uint64_t n) {
  return extend(same_process ? ProcessMemory::get().common().mapping() : common_memory, common_bytes, where, n,
                &common_open);
}

Block LocalPeer::block(uint64_t offset, int size) {
  if (offset % alignof(Line) != 0 || !reach(offset, Block::bytes(size))) {
    throw Error(Code::backend, "shared memory: a peer named a block outside of its segment");
  }
  return Block(const_cast<std::byte*>(base) + offset, size);
}

bool LocalPeer::gone() {
  if (same_process || lost.load(std::memory_order_relaxed)) return lost.load(std::memory_order_relaxed);
  // A pidfd is readable once its process has ended. The socket hangs up then, too, even for a process that is not
  // visible from here. Both are polled, because a forked child of the peer may hold the socket open. if_ours(): if the
  // program has closed a descriptor, another file may have its number.
  pollfd fds[2] = {{socket.if_ours(), POLLIN | POLLRDHUP, 0}, {pidfd.if_ours(), POLLIN, 0}};
  if (::poll(fds, 2, 0) > 0 && ((fds[0].revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0 || fds[1].revents != 0)) {
    lost.store(true, std::memory_order_relaxed);
  }
  return lost.load(std::memory_order_relaxed);
}

std::string LocalPeer::state() const {
  if (same_process) return "a thread of this process";
  if (pid == 0) return lost ? "exited" : "alive";
  if (lost) return "pid " + std::to_string(pid) + ", exited";
  return process_in_words(pid);
}

}  // namespace a2a::shm
