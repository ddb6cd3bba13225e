#include "a2a/endpoint.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>

#include "a2a/work.h"
#include "bootstrap/secret.h"
#include "bootstrap/user.h"
#include "endpoint/meeting.h"
#include "runtime/fork_guard.h"
#include "transport/hosts/host_map.h"
#include "transport/shm/protocol/layout.h"

namespace a2a {
namespace {

using endpoint::Handle;
using endpoint::Meeting;
using endpoint::Standing;

std::string node_name() {
  char name[HOST_NAME_MAX + 1] = "?";
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

endpoint::Id new_id() {
  endpoint::Id id;
  if (::getrandom(id.data(), id.size(), 0) != static_cast<ssize_t>(id.size())) socket_failure("getrandom");
  return id;
}

std::vector<SocketAddress> places_to_listen(const std::string& address, const endpoint::Id& id) {
  if (address.empty()) return resolve("@a2a-endpoint-" + endpoint::text_of(id), Deadline::never());
  return resolve_to_listen(address, Deadline::after_seconds(60));
}

Handle describe(const Socket& listener, const endpoint::Id& id) {
  return {.id = id,
          .pid = static_cast<uint32_t>(::getpid()),
          .node = node_name(),
          .network = hosts::own_host(),
          .address = local_address(listener.fd())};
}

}  // namespace

struct Endpoint::State {
  State(Options given, endpoint::Id id, Socket listener)
      : options(std::move(given)),
        standing{.self = describe(listener, id),
                 .secret = options.secret,
                 .host = options.host.empty() ? std::nullopt : std::optional(options.host),
                 .acceptor = Acceptor(Socket(), ""),
                 .guests = {},
                 .used = {},
                 .network = nullptr,
                 .links = {}},
        listener_fd(listener.fd()) {
    standing.acceptor = Acceptor(std::move(listener), endpoint::key_of(standing.self, standing.secret));
    handle = endpoint::pack(standing.self, standing.secret);
    close_in_child(listener_fd);
  }
  ~State() {
    if (!home.inherited()) keep_in_child(listener_fd);
  }

  std::vector<Handle> parse(std::span<const std::string> handles) const;
  void check(std::span<const Handle> members, int64_t number) const;
  std::vector<Handle> readable(std::span<const std::string> handles) const;
  void decline(std::span<const std::string> handles, int64_t number, std::string_view why);
  Rank place_in(std::span<const Handle> members) const {
    return static_cast<Rank>(std::ranges::find(members, standing.self.id, &Handle::id) - members.begin());
  }

  const ForkGuard home;
  const Options options;
  Standing standing;
  const int listener_fd;
  std::string handle;
  std::atomic<bool> connecting{false};
  std::atomic<int64_t> generation{-1};
  std::weak_ptr<Communicator> former;
  std::shared_ptr<const void> connections;  // of the former communicator: the next one uses them
};

namespace {

// Held during connect().
class Turn {
 public:
  explicit Turn(std::atomic<bool>& taken) : taken_(taken) {
    if (taken_.exchange(true)) {
      throw Error(Code::invalid_argument,
                  "connect: this endpoint is in connect() already, in another thread or further up in this one");
    }
  }
  ~Turn() { taken_ = false; }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::atomic<bool>& taken_;
};

[[noreturn]] void refuse(const std::string& why) { throw Error(Code::invalid_argument, "connect: " + why); }

}  // namespace

std::vector<Handle> Endpoint::State::parse(std::span<const std::string> handles) const {
  if (handles.empty()) refuse("handles is empty; it has the handle of each rank, this endpoint's included");
  if (handles.size() > static_cast<size_t>(shm::kMaxRanks)) {
    refuse("handles has " + std::to_string(handles.size()) + " entries; a group has at most " +
           std::to_string(shm::kMaxRanks) + " ranks");
  }
  std::vector<Handle> members;
  for (size_t i = 0; i < handles.size(); ++i) {
    const std::string what = "handles[" + std::to_string(i) + "]";
    members.push_back(endpoint::unpack(handles[i], standing.secret, "connect: " + what));
    for (size_t j = 0; j < i; ++j) {
      if (members[j].id == members[i].id) refuse(what + " is the same as handles[" + std::to_string(j) + "]");
    }
  }
  return members;
}

void Endpoint::State::check(std::span<const Handle> members, int64_t number) const {
  if (place_in(members) == static_cast<Rank>(members.size()))
    refuse("handles does not have the handle of this endpoint");
  if (number < 0) refuse("generation is " + std::to_string(number) + "; it is a number from 0 on");
  if (standing.used.contains(number)) {
    refuse("generation " + std::to_string(number) + " was already used by this endpoint; each group has a new number");
  }
  for (const Handle& other : members) {
    if (!other.on_unix() || other.network == standing.self.network) continue;
    throw Error(Code::unsupported, "connect: " + other.in_words() + " is on another host than " +
                                       standing.self.in_words() + " and has no address; give each Endpoint an address");
  }
}

// Returns those that are handles, and this endpoint's.
std::vector<Handle> Endpoint::State::readable(std::span<const std::string> handles) const {
  std::vector<Handle> members;
  const auto listed = [&](const Handle& one) {
    return std::ranges::find(members, one.id, &Handle::id) != members.end();
  };
  for (const std::string& text : handles.first(std::min<size_t>(handles.size(), shm::kMaxRanks))) {
    try {
      Handle one = endpoint::unpack(text, standing.secret, "");
      if (!listed(one)) members.push_back(std::move(one));
    } catch (const Error&) {  // nobody can be told at this one
    }
  }
  if (!listed(standing.self)) members.push_back(standing.self);
  return members;
}

void Endpoint::State::decline(std::span<const std::string> handles, int64_t number, std::string_view why) {
  std::vector<Handle> members = readable(handles);
  const Rank place = place_in(members);
  const std::string which = number < 0 ? "" : " in generation " + std::to_string(number);
  const Error error(Code::mismatch, standing.self.in_words() + " does not take part" + which + ": " + std::string(why));
  Meeting(standing, std::move(members), place, number).decline(error);
}

Endpoint::Endpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Endpoint::~Endpoint() = default;
const std::string& Endpoint::handle() const { return state_->handle; }
int64_t Endpoint::generation() const { return state_->generation; }

std::shared_ptr<Endpoint> Endpoint::create(Options options) {
  if (!options.secret.empty()) check_secret(options.secret);
  if (!options.address.empty() && options.secret.empty()) {
    throw Error(Code::invalid_argument,
                "Endpoint: address '" + options.address + "' can be reached from other hosts, which requires a secret");
  }
  if (options.secret.empty() && !ids_tell_users_apart()) options.secret = secret_instead_of_ids();
  const endpoint::Id id = new_id();
  Socket listener = listen_at(places_to_listen(options.address, id), options.address, "the endpoint");
  return std::shared_ptr<Endpoint>(new Endpoint(std::make_unique<State>(std::move(options), id, std::move(listener))));
}

void Endpoint::decline(std::span<const std::string> handles, std::string_view why) {
  state_->home.refuse_if_inherited();
  const Turn turn(state_->connecting);
  state_->decline(handles, -1, why);
}

std::shared_ptr<Communicator> Endpoint::connect(std::span<const std::string> handles, int64_t generation,
                                                std::optional<Deadline> deadline, std::vector<Rank>* joined) {
  State& state = *state_;
  Standing& standing = state.standing;
  state.home.refuse_if_inherited();
  const Turn turn(state.connecting);
  const Deadline until = deadline.value_or(Deadline::after_seconds(state.options.communicator.timeout_seconds));
  std::vector<Handle> members;
  try {
    members = state.parse(handles);
    state.check(members, generation);
  } catch (const Error& error) {
    state.decline(handles, generation, error.what());
    throw;
  }
  if (const auto former = state.former.lock()) {
    former->retire("the group of generation " + std::to_string(state.generation) +
                   " is over: " + standing.self.in_words() + " connects in generation " + std::to_string(generation));
  }
  const auto size = static_cast<int>(members.size());
  const Rank place = state.place_in(members);
  Meeting meeting(standing, std::move(members), place, generation);
  std::shared_ptr<Communicator> made;
  try {
    meeting.gather(until);
    made = Communicator::create(place, size, meeting, state.options.communicator, until);
    meeting.allgather("", until);  // all have made it
  } catch (const Interrupted& interrupted) {
    meeting.give_up(Error(Code::aborted, standing.self.in_words() + " was " + interrupted.what()));
    throw;
  } catch (const Error& error) {
    meeting.give_up(error);
    throw;
  } catch (const std::exception& error) {  // no memory
    meeting.give_up(Error(Code::backend, standing.self.in_words() + ": " + error.what()));
    throw;
  }
  if (joined != nullptr) *joined = meeting.joined();
  standing.failed.erase(generation);
  standing.used.insert(generation);
  standing.former = state.generation = generation;
  standing.former_list = meeting.list();
  state.former = made;
  state.connections = made->connections();
  return made;
}

}  // namespace a2a
