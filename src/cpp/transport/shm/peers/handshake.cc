// Each rank sends the others the address of its listening socket through the bootstrap. Then each pair of processes
// makes one connection, over which each passes the other the descriptors of its memory (SCM_RIGHTS).
#include "transport/shm/peers/handshake.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include "bootstrap/sha256.h"
#include "bootstrap/user.h"
#include "runtime/environment.h"
#include "runtime/faultpoint.h"
#include "runtime/object_bytes.h"
#include "runtime/process.h"
#include "transport/shm/copy/copy.h"
#include "transport/shm/peers/announcement.h"
#include "transport/shm/peers/unix_socket.h"

namespace a2a::shm {
namespace {

// Each of the two processes of a connection sends it, with the descriptors of its memory.
struct Hello {
  uint32_t protocol = kProtocol;
  int32_t rank = 0;
  uint64_t nonce = 0;
  uint64_t link = 0;     // LocalPeer::link; the lower rank chooses it
  uint32_t gave_up = 0;  // 1: this rank has given up; do not wait for it
  int32_t culprit = -1;  // with gave_up: the rank because of which it gave up, or -1
};

// The proof of identity that each sends before Hello, where user ids do not identify the other end's user.
struct Proof {
  int32_t rank = 0;
  Digest mac{};
};

// A connection whose other end has not sent Hello.
struct Pending {
  Descriptor socket;
  Rank proven = -1;  // the rank that it has proved to be, where proofs are required
};

// Each sends it after it has tried to read the memory of the other.
struct ReadCheck {
  uint32_t cma_from = 0;  // 1: the sender can copy from the memory of the other with process_vm_readv
};

bool vm_readv_wanted() { return switch_variable("A2A_SHM_CMA").value_or(true); }

// The Yama security module may restrict reading to ancestors; a process may lift that for its own memory. Other
// processes of the same user can then read it, as they can without Yama. A2A_SHM_CMA=0 leaves the restriction.
void allow_reading() {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  if (int scope = 0; file >> scope && scope == 1) ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

// The handshakes of one rank with all others.
class Handshake {
 public:
  Handshake(Rank rank, int size, Bootstrap& bootstrap, ShmProgress& progress, Deadline deadline,
            std::span<const Rank> names)
      : rank_(rank),
        size_(size),
        bootstrap_(bootstrap),
        memory_(progress.memory()),
        deadline_(deadline),
        names_(names),
        listener_(size) {}

  ConnectedGroup run(ShmProgress& progress, uint64_t block) {
    if (vm_readv_wanted()) allow_reading();
    exchange_announcements(progress, block);
    try {
      connect_all();
    } catch (const Error&) {
      announce_failure();
      throw;
    }
    group_.surroundings = surroundings_of(announcements_);
    return std::move(group_);
  }

 private:
  void connect_all() {
    group_.local_peers.resize(static_cast<size_t>(size_));
    if (bootstrap_.met_before()) use_known_peers();
    require_proofs();
    for (Rank peer = 0; peer < size_; ++peer) {
      if (peer != rank_ && at(peer).nonce == memory_.nonce()) add_thread(peer);
    }
    // The lower rank of a pair connects. To connect takes no action of the other rank, to accept takes a connection,
    // and an answer takes that the other rank has accepted. So no order of arrival can block.
    for (Rank peer = rank_ + 1; peer < size_; ++peer) {
      if (is_new(peer)) connect_to(peer);
    }
    accept_all();
    for (Rank peer = rank_ + 1; peer < size_; ++peer) {
      if (is_new(peer)) finish_connecting(peer);
    }
    for (Rank peer = 0; peer < rank_; ++peer) {
      if (is_new(peer)) receive_read_check(peer);
    }
    if (bootstrap_.met_before()) note_known_peers();
  }

  KnownPeers::Pair pair_with(Rank peer) const { return {at(rank_).seat, at(peer).nonce, at(peer).seat}; }

  // A pair uses its connection again if both ends still have it.
  void use_known_peers() {
    std::vector<std::shared_ptr<LocalPeer>> known(static_cast<size_t>(size_));
    std::vector<uint64_t> links(static_cast<size_t>(size_));
    for (Rank peer = 0; peer < size_; ++peer) {
      const auto i = static_cast<size_t>(peer);
      if (remote(peer)) known[i] = memory_.known_peers().find(pair_with(peer));
      if (known[i] != nullptr) links[i] = known[i]->link;
    }
    const auto all =
        bootstrap_.allgather({reinterpret_cast<const char*>(links.data()), links.size() * sizeof(uint64_t)}, deadline_);
    known_.resize(static_cast<size_t>(size_));
    for (Rank peer = 0; peer < size_; ++peer) {
      const auto i = static_cast<size_t>(peer);
      uint64_t theirs = 0;
      if (all.at(i).size() != links.size() * sizeof(theirs)) {
        throw Error(Code::backend, rank_name(peer) + " sent nonsense while the ranks met");
      }
      std::memcpy(&theirs, all[i].data() + static_cast<size_t>(rank_) * sizeof(theirs), sizeof(theirs));
      if (links[i] == 0 || theirs != links[i]) continue;
      known_[i] = true;
      local_peer(peer) = std::move(known[i]);
    }
  }

  void note_known_peers() {
    for (Rank peer = 0; peer < size_; ++peer) {
      if (is_new(peer)) memory_.known_peers().add(pair_with(peer), local_peer(peer));
    }
  }

  uint64_t new_link() const {
    static std::atomic<uint64_t> made{0};
    return memory_.nonce() + ++made;
  }

  // Requires proofs where user ids do not identify users: nobody else may get descriptors of this process's memory.
  // Threads need no proof.
  void require_proofs() {
    bool alone = true;
    for (Rank peer = 0; peer < size_; ++peer) alone = alone && !is_new(peer);
    if (!alone && !ids_tell_users_apart()) secret_ = secret_instead_of_ids();
  }

  // Returns the proof of rank `from` to rank `to`. The addresses hold random numbers, so it is valid for one pair of
  // processes, in one direction.
  Proof proof(Rank from, Rank to) const {
    Sha256 all;
    for (const Announcement& a : announcements_) all.add(object_bytes(a));
    std::string text = "a2a rank " + std::to_string(from) + " to rank " + std::to_string(to) + " ";
    text += as_text(all.digest());
    return {from, hmac_sha256(*secret_, text)};
  }

  // Whether the other end is that rank. The pid reveals another process between the two that relays their messages.
  bool proves(int socket, const Proof& theirs, Rank peer) const {
    const bool visible = at(rank_).pid_namespace != 0 && at(peer).pid_namespace == at(rank_).pid_namespace;
    return same_mac(as_text(theirs.mac), as_text(proof(peer, rank_).mac)) &&
           (!visible || peer_credentials(socket).pid == at(peer).pid);
  }

  // Sends higher ranks, which wait for a connection of this rank, that it gave up. Lower ranks notice that its
  // listening socket is closed.
  void announce_failure() {
    for (Rank peer = rank_ + 1; peer < size_; ++peer) {
      if (!is_new(peer) || local_peer(peer) != nullptr) continue;
      try {
        connect_to(peer, true);
      } catch (const Error&) {  // that rank has given up, too
      }
    }
  }

  Rank name(Rank rank) const { return names_.empty() ? rank : names_[static_cast<size_t>(rank)]; }
  std::string rank_name(Rank rank) const { return "rank " + std::to_string(name(rank)); }
  const Announcement& at(Rank peer) const { return announcements_[static_cast<size_t>(peer)]; }
  std::shared_ptr<LocalPeer>& local_peer(Rank peer) { return group_.local_peers[static_cast<size_t>(peer)]; }
  bool remote(Rank peer) const { return at(peer).nonce != memory_.nonce(); }
  // Whether the two have to connect.
  bool is_new(Rank peer) const { return remote(peer) && (known_.empty() || !known_[static_cast<size_t>(peer)]); }

  // Opens pidfds of all processes that are visible from here, so that a death before the connection is noticed at once.
  void watch_processes(const Announcement& mine) {
    Rank dead = -1;
    for (Rank peer = 0; peer < size_; ++peer) {
      const bool same = mine.pid_namespace != 0 && at(peer).pid_namespace == mine.pid_namespace;
      const bool visible = remote(peer) && same;
      watched_.emplace_back(visible ? static_cast<int>(::syscall(SYS_pidfd_open, at(peer).pid, 0)) : -1);
      if (visible && watched_.back().fd() < 0 && errno == ESRCH) dead = peer;
    }
    if (dead >= 0) lost(dead);
  }

  std::string in_words(Rank peer) const {
    const bool visible = watched_[static_cast<size_t>(peer)].fd() >= 0;
    return rank_name(peer) + (visible ? " (" + process_in_words(at(peer).pid) + ")" : "");
  }

  std::vector<Rank> gone() const {
    constexpr int kGrace = 20;  // milliseconds: a process that ends closes its sockets before its pidfd is readable
    std::vector<pollfd> processes;
    for (const Descriptor& process : watched_) processes.push_back({process.fd(), POLLIN, 0});
    if (::poll(processes.data(), processes.size(), kGrace) > 0) ::poll(processes.data(), processes.size(), 0);
    std::vector<Rank> ranks;
    for (Rank r = 0; r < size_; ++r) {
      if (processes[static_cast<size_t>(r)].revents != 0) ranks.push_back(r);
    }
    return ranks;
  }

  // Throws Error(peer_lost). The peer may have given up because of another rank, so the error names all ranks that are
  // gone.
  [[noreturn]] void lost(Rank peer) {
    std::vector<Rank> ranks = gone();
    ranks.push_back(peer);
    throw Error(Code::peer_lost, "lost while the ranks met: " + list_missing(ranks));
  }

  [[noreturn]] void timed_out(const std::vector<Rank>& whom) {
    throw Error(Code::timeout, rank_name(rank_) + " timed out while the ranks met, waiting for " + list_missing(whom));
  }

  // Describes these ranks, and all that are stopped: a rank that is waited for may itself wait for a stopped one.
  std::string list_missing(const std::vector<Rank>& ranks) {
    std::string text;
    for (Rank r = 0; r < size_; ++r) {
      const std::string words = in_words(r);
      if (std::ranges::find(ranks, r) == ranks.end() && !words.ends_with("stopped)")) continue;
      text += (text.empty() ? "" : ", ") + words;
      if (culprit_ < 0 || words.ends_with("stopped)")) culprit_ = r;
    }
    return text;
  }

  // Waits until one of the descriptors `sources` can be read, and returns its index. Throws Error(peer_lost) when a
  // rank dies first, Error(timeout) with the names of `whom`.
  size_t await_readable(const std::vector<int>& sources, const std::vector<Rank>& whom) {
    std::vector<pollfd> fds;
    for (const int fd : sources) fds.push_back({fd, POLLIN, 0});
    for (const Descriptor& process : watched_) fds.push_back({process.fd(), POLLIN, 0});
    for (;;) {
      ::poll(fds.data(), fds.size(), 20);
      for (size_t i = 0; i < fds.size(); ++i) {
        if (fds[i].revents == 0) continue;
        if (i < sources.size()) return i;
        lost(static_cast<Rank>(i - sources.size()));
      }
      bootstrap_.while_meeting();
      if (deadline_.passed()) {
        timed_out(whom);
      }
    }
  }

  void exchange_announcements(ShmProgress& progress, uint64_t block) {
    const Announcement mine = own_announcement(progress, size_, block, listener_.name());
    faultpoint("joined");
    const auto all = bootstrap_.allgather(object_bytes(mine), deadline_);
    faultpoint("addresses");
    if (all.size() != static_cast<size_t>(size_)) {
      throw Error(Code::invalid_argument, "the bootstrap returned " + std::to_string(all.size()) +
                                              " strings for a group of " + std::to_string(size_) + " ranks");
    }
    for (Rank peer = 0; peer < size_; ++peer) {
      announcements_.push_back(
          parse_announcement(all[static_cast<size_t>(peer)], rank_name(peer), mine, rank_name(rank_)));
      group_.blocks.push_back(announcements_.back().block);
    }
    watch_processes(mine);
  }

  void add_thread(Rank peer) {
    // A process could send the nonce of this process as its own. This rank would then use its own memory at offsets
    // which that process has chosen.
    if (at(peer).segment_bytes != memory_.arena().bytes() || at(peer).common_bytes != memory_.common().bytes()) {
      throw Error(Code::backend, "shared memory: rank " + std::to_string(peer) + " is no thread of this process");
    }
    auto n = std::make_shared<LocalPeer>();
    n->pid = ::getpid();
    n->same_process = true;
    use_memory(*n, peer, memory_.arena().base(), memory_.common().base());
    local_peer(peer) = std::move(n);
  }

  void use_memory(LocalPeer& n, Rank peer, const std::byte* segment, std::byte* common) {
    const Announcement& a = at(peer);
    n.base = segment;
    n.bytes = a.segment_bytes;
    n.common = common;
    n.common_bytes = a.common_bytes;
    if (a.seat % alignof(SeatWords) != 0 || !n.reach(a.seat, sizeof(SeatWords)) || !n.reach_common(0, kBellsBytes) ||
        a.bell >= kBells) {
      throw Error(Code::backend, "shared memory: " + rank_name(peer) + " named a seat outside of its segment");
    }
    n.seat = reinterpret_cast<const SeatWords*>(segment + a.seat);
    n.bell = reinterpret_cast<BellWord*>(common) + a.bell;
  }

  void connect_to(Rank peer, bool gave_up = false) {
    auto n = std::make_shared<LocalPeer>();
    n->link = new_link();
    const std::string_view name = at(peer).listener_name();
    n->socket = connect_to_listener(name);
    while (n->socket.fd() < 0 && errno == EAGAIN) {  // the queue is full, perhaps of connections of other processes
      if (deadline_.passed()) timed_out({peer});
      bootstrap_.while_meeting();
      n->socket = connect_to_listener(name);
    }
    if (n->socket.fd() < 0) {
      if (errno != ECONNREFUSED) system_failure("cannot connect to " + rank_name(peer));
      if (watched_[static_cast<size_t>(peer)].fd() >= 0) lost(peer);
      throw Error(Code::peer_lost,
                  rank_name(peer) + " cannot be reached: it has exited, or lives in another network namespace");
    }
    if (!same_user(n->socket.fd())) {
      throw Error(Code::unsupported, rank_name(peer) + " belongs to another user");
    }
    identify_process(*n);
    if (secret_ && !try_send(n->socket.fd(), proof(rank_, peer))) lost(peer);
    if (!secret_ || gave_up) send_hello(*n, peer, gave_up);
    local_peer(peer) = std::move(n);
  }

  // Stores the pid and a pidfd of the other end, as the kernel reports them.
  void identify_process(LocalPeer& n) {
    n.pid = peer_credentials(n.socket.fd()).pid;
    if (n.pid > 0) n.pidfd = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, n.pid, 0)));
    close_in_child(n.socket.fd());
    if (n.pidfd.fd() >= 0) close_in_child(n.pidfd.fd());
    n.own_memory = &memory_;
  }

  void send_hello(const LocalPeer& n, Rank peer, bool gave_up = false) {
    Hello hello;
    hello.rank = rank_;
    hello.nonce = memory_.nonce();
    hello.link = n.link;
    hello.gave_up = gave_up ? 1 : 0;
    hello.culprit = culprit_;
    const int fds[2] = {memory_.arena().fd(), memory_.common().fd()};
    if (!try_send(n.socket.fd(), hello, std::span(fds, gave_up ? 0 : 2))) lost(peer);
    faultpoint("hello");
  }

  // Maps the memory that came with a peer's Hello, and tries to read it.
  void map_memory(LocalPeer& n, Rank peer, const Descriptor& segment, const Descriptor& common) {
    const Announcement& a = at(peer);
    try {
      n.segment = map_peer(segment.fd(), a.segment_bytes, false);
      n.common_memory = map_peer(common.fd(), a.common_bytes, true);
    } catch (const Error& error) {
      throw Error(error.code(),
                  rank_name(rank_) + " cannot map the memory of " + rank_name(peer) + ": " + error.what());
    }
    use_memory(n, peer, n.segment.base(), n.common_memory.base());
    faultpoint("mapped");
    n.cma_from = vm_readv_wanted() && can_read(n.pid, reinterpret_cast<const void*>(a.nonce_address), a.nonce);
  }

  // Receives a Hello. Returns its rank, or nullopt when it is none of this group's. Throws Error(peer_lost) when that
  // rank gave up.
  std::optional<Rank> read_hello(int socket, Descriptor* segment, Descriptor* common, uint64_t* link) {
    const auto hello = receive_message<Hello>(socket, segment, common);
    if (!hello || hello->protocol != kProtocol || hello->rank < 0 || hello->rank >= size_) return std::nullopt;
    if (at(hello->rank).nonce != hello->nonce) return std::nullopt;
    if (hello->gave_up != 0) {
      std::vector<Rank> missed = gone();
      missed.push_back(hello->culprit);
      const std::string who = list_missing(missed);
      throw Error(Code::peer_lost,
                  rank_name(hello->rank) + " gave up while the ranks met" + (who.empty() ? "" : "; missing: " + who));
    }
    *link = hello->link;
    return hello->rank;
  }

  // Accepts the connections of all lower ranks. Any process on the host may connect to an abstract name. Connections of
  // other users are closed; a process of this user that sends nothing, or something else, delays nobody.
  void accept_all() {
    std::vector<Pending> pending_connections;
    for (auto left = missing(); !left.empty(); left = missing()) {
      std::vector<int> sources{listener_.fd()};
      for (const Pending& pending : pending_connections) sources.push_back(pending.socket.fd());
      const size_t ready = await_readable(sources, left);
      if (ready == 0) {
        Descriptor socket = listener_.accept();
        if (socket.fd() >= 0 && same_user(socket.fd())) pending_connections.push_back({std::move(socket)});
        continue;
      }
      Pending pending = std::move(pending_connections[ready - 1]);
      pending_connections.erase(pending_connections.begin() + static_cast<ptrdiff_t>(ready) - 1);
      if (!secret_ || pending.proven >= 0) {
        admit(std::move(pending));
      } else if (prove_each_other(pending)) {
        pending_connections.push_back(std::move(pending));
      }
    }
  }

  bool prove_each_other(Pending& pending) {
    const auto theirs = receive_message<Proof>(pending.socket.fd());
    const auto left = missing();
    if (!theirs || std::ranges::find(left, theirs->rank) == left.end()) return false;
    if (!proves(pending.socket.fd(), *theirs, theirs->rank)) return false;
    pending.proven = theirs->rank;
    // A rank that gave up has sent its Hello already, and reads no answer.
    pollfd more{pending.socket.fd(), POLLIN, 0};
    if (::poll(&more, 1, 0) == 0) try_send(pending.socket.fd(), proof(rank_, theirs->rank));
    return true;
  }

  std::vector<Rank> missing() {
    std::vector<Rank> ranks;
    for (Rank peer = 0; peer < rank_; ++peer) {
      if (is_new(peer) && local_peer(peer) == nullptr) ranks.push_back(peer);
    }
    return ranks;
  }

  void admit(Pending pending) {
    Descriptor segment, common;
    uint64_t link = 0;
    const auto peer = read_hello(pending.socket.fd(), &segment, &common, &link);
    if (!peer || *peer >= rank_ || local_peer(*peer) != nullptr) return;
    if (secret_ && *peer != pending.proven) return;
    auto n = std::make_shared<LocalPeer>();
    n->link = link;
    n->socket = std::move(pending.socket);
    identify_process(*n);
    map_memory(*n, *peer, segment, common);
    send_hello(*n, *peer);
    if (!try_send(n->socket.fd(), ReadCheck{n->cma_from})) lost(*peer);
    local_peer(*peer) = std::move(n);
  }

  void finish_connecting(Rank peer) {
    LocalPeer& n = *local_peer(peer);
    await_readable({n.socket.fd()}, {peer});
    if (secret_) {
      const auto theirs = receive_message<Proof>(n.socket.fd());
      if (!theirs || theirs->rank != peer || !proves(n.socket.fd(), *theirs, peer)) lost(peer);
      send_hello(n, peer);
      await_readable({n.socket.fd()}, {peer});
    }
    Descriptor segment, common;
    uint64_t link = 0;
    if (read_hello(n.socket.fd(), &segment, &common, &link) != peer || link != n.link) lost(peer);
    map_memory(n, peer, segment, common);
    if (!try_send(n.socket.fd(), ReadCheck{n.cma_from})) lost(peer);
    receive_read_check(peer);
  }

  void receive_read_check(Rank peer) {
    LocalPeer& n = *local_peer(peer);
    await_readable({n.socket.fd()}, {peer});
    const auto check = receive_message<ReadCheck>(n.socket.fd());
    if (!check) lost(peer);
    n.cma_to = check->cma_from != 0;
  }

  Rank rank_;
  int size_;
  Bootstrap& bootstrap_;
  ProcessMemory& memory_;
  Deadline deadline_;
  std::span<const Rank> names_;
  Listener listener_;
  std::vector<Announcement> announcements_;
  std::vector<bool> known_;            // by rank: whether it was connected before; empty: none was
  std::vector<Descriptor> watched_;    // by rank: a pidfd, or none
  std::optional<std::string> secret_;  // for proofs, where they are required
  Rank culprit_ = -1;                  // the rank because of which this one gave up
  ConnectedGroup group_;
};

}  // namespace

ConnectedGroup connect_group(Rank rank, int size, Bootstrap& bootstrap, ShmProgress& progress, uint64_t block_offset,
                             Deadline deadline, std::span<const Rank> names) {
  return Handshake(rank, size, bootstrap, progress, deadline, names).run(progress, block_offset);
}

}  // namespace a2a::shm
