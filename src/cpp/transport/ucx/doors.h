// The TCP sockets of UCX, which forked children have to close: an open copy would hide the death of their parent. UCX
// names none of its sockets. They are those that listen where it began to when its worker was made, and those connected
// to an address at which a process listens so.
#pragma once

#include <set>
#include <string>

namespace a2a::ucx {

// Addresses with ports, as getsockname() returns them.
using Doors = std::set<std::string>;

// Returns the addresses at which this process listens.
Doors listening();

// Keeps the sockets at these doors from forked children, and from programs that this process executes.
class KeptSockets {
 public:
  KeptSockets() = default;
  ~KeptSockets();
  KeptSockets(const KeptSockets&) = delete;
  KeptSockets& operator=(const KeptSockets&) = delete;

  // Call once when the connections stand. Connections that come later are kept from forked children only.
  void keep(Doors doors);

 private:
  Doors doors_;
};

}  // namespace a2a::ucx
