// The network between hosts over MPI.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/hosts/inbox.h"
#include "transport/hosts/network.h"
#include "transport/mpi/library.h"

namespace a2a::mpi {

using hosts::Message;
using hosts::Process;
using hosts::Transfer;

class MpiNetwork final : public hosts::Network, public std::enable_shared_from_this<MpiNetwork> {
 public:
  explicit MpiNetwork(std::unique_ptr<Library> library);

  // Whether all processes have duplicated the communicator. All other functions require that.
  bool connected();
  bool connects_processes_of(const Library& library) const { return library_->same_processes(library); }

  // Returns a unique name for the next group that uses this name. All processes get the same.
  std::string next_meeting(const std::string& name);

  Process self() const override { return library_->rank(); }
  int size() const override { return library_->size(); }
  std::string name() const override { return library_->name(); }

  void enter(User* user) override;
  void leave(User* user) noexcept override;
  void broke(Code code, bool died) noexcept override;

  void post(Process to, std::string bytes) override;
  std::optional<Message> take(uint64_t channel) override;
  bool flushed() override;
  void close(uint64_t channel) noexcept override;

  uint32_t next_tag(Process to) override;
  bool fresh(Process to, uint32_t tag) const override;
  std::unique_ptr<Transfer> send(Process to, uint32_t tag, std::span<const Run> runs) override;
  std::unique_ptr<Transfer> receive(Process from, uint32_t tag, std::span<const Run> runs) override;
  std::unique_ptr<Transfer> discard(Process from, uint32_t tag, size_t bytes) override;
  void advance() override;

  uint64_t sent() const override;

  // These functions end the network, with MPI or with the process. First notify_users(): users may send last messages.
  // Then wind_up(), until it returns true: MPI_Finalize would wait for anything left under way between the processes.
  // wind_up() never returns true while a process is stuck. After that, or after give_up(), MPI is not called any more.
  void notify_users() noexcept;
  bool wind_up();
  void tell_of_death() noexcept;
  void give_up() noexcept;
  bool has_died() const { return died_; }
  bool may_be_stuck() const { return late_; }
  Library& library() { return *library_; }

 private:
  friend class Pieces;
  friend class Sending;
  friend class Receiving;

  // A message in flight, in or out, with the memory that MPI uses. Elements of lists do not move.
  struct PendingMessage {
    std::string bytes;
    Handle request = 0;
    Process peer = 0;
  };

  Error finalised_by_program() const;
  void refuse_if_ended() const;
  void start_post(Process to, std::string bytes, int tag);
  void move_messages();
  void receive_messages();
  void complete_posted();
  void discard_arriving();

  std::mutex users_mutex_;  // locked before mutex_
  std::vector<User*> users_;
  mutable std::mutex mutex_;  // guards what follows
  std::unique_ptr<Library> library_;
  bool ended_ = false;  // MPI must not be called any more
  std::optional<Handle> last_barrier_;
  std::atomic<bool> died_ = false, late_ = false;  // users know that a process died; that one may be stuck
  const uint32_t largest_tag_;
  std::vector<std::atomic<uint32_t>> tags_;  // the last tag for each process; fresh() reads it without the mutex
  std::list<PendingMessage> posted_, arriving_;
  hosts::Inbox inbox_{SIZE_MAX};
  std::map<std::string, uint64_t> meetings_;
  uint64_t sent_ = 0;
  std::map<std::pair<Process, uint32_t>, unsigned>
      unused_ready_;  // by sender and tag: ready messages without a receive
};

}  // namespace a2a::mpi
