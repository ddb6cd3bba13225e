// The frames that travel between two ranks, and what one rank knows of its link with a peer.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "engine/mesh.h"

namespace fake {

struct Mesh::Frame {
  enum Type : uint32_t {
    hello,     // header.kind: the rank, header.count: how many ranks it thinks there are
    announce,  // a message of that header wants to be received
    accept,    // ... so it is, header.bytes of it
    refuse,    // ... it is not: the receiver expects what the header says
    data,      // header.bytes follow, for the oldest accepted message
    control,   // header.bytes of text follow: a topic, a zero byte, what the sender says
    leave,
  };
  uint32_t type = hello;
  uint32_t unused = 0;
  Header header;
};

// Where accepted bytes go; the memory stays mapped until they are there.
struct Landing {
  Region memory;
  bool* arrived;  // null: the operation has given up, and nobody wants them
};

struct Mesh::Link {
  Link(int socket, int rank) : descriptor(socket), peer(rank) { track(socket); }
  ~Link() { close_tracked(descriptor); }

  // False when the peer is gone. Whole frames, from any thread; nothing may be locked that the reader of frames needs.
  bool write(const Frame& frame, const void* payload = nullptr);
  bool read(void* to, size_t bytes) const;

  const int descriptor;
  int peer;  // fixed when the peer has said who it is
  std::mutex writing;

  // The rest is under the mesh's mutex.
  std::deque<Header> announced;  // by the peer, not yet received
  std::deque<Frame> answers;     // of the peer, in the order of what was announced to it
  std::deque<Landing> landings;
  std::map<std::string, std::deque<std::string>> controls;  // topic -> what the peer said
  bool left = false;
  bool closed = false;
};

}  // namespace fake
