#include "endpoint/meeting.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "a2a/work.h"
#include "bootstrap/tcp/tcp_bootstrap.h"
#include "bootstrap/user.h"
#include "endpoint/channels.h"
#include "runtime/process.h"

namespace a2a::endpoint {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMostGuests = 1024;
constexpr double kLingerSeconds = 0.3;  // for those who come late to a meeting whose arguments are wrong
constexpr double kLastWordsSeconds = 0.05;

}  // namespace

Meeting::Meeting(Standing& standing, std::vector<Handle> members, Rank place, int64_t generation)
    : standing_(standing), place_(place), generation_(generation), failed_before_(standing.times_failed(generation)) {
  Sha256 all;
  for (Handle& handle : members) {
    all.add(text_of(handle.id));
    members_.emplace_back(std::move(handle));
  }
  list_ = all.digest();
}

// ---- words --------------------------------------------------------------------------------------------------------

Meeting::Member* Meeting::find(const std::string& id) {
  const auto found = std::ranges::find_if(members_, [&](const Member& m) { return text_of(m.handle.id) == id; });
  return found == members_.end() ? nullptr : &*found;
}

std::string Meeting::name(const Member& m) const {
  return "rank " + std::to_string(rank_of(m)) + " (" + m.handle.in_words() + ")";
}

Error Meeting::error(Code code, const std::string& what) const {
  return {code, "generation " + std::to_string(generation_) + ": " + what};
}

std::string Meeting::words() const {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < std::min(members_.size(), kMost); ++i) {
    text += (i == 0 ? "" : ", ") + members_[i].handle.in_words();
  }
  if (members_.size() > kMost) text += ", ...";
  return std::to_string(members_.size()) + " (" + text + ")";
}

std::string Meeting::absent() const {
  std::string text;
  for (const Member& m : members_) {
    if (has_come(m)) continue;
    text += (text.empty() ? "" : ", ") + name(m);
    if (m.handle.node != standing_.self.node) continue;
    if (process_in_words(static_cast<pid_t>(m.handle.pid)).ends_with("stopped")) text += ", which is stopped";
  }
  return text;
}

// ---- the meeting --------------------------------------------------------------------------------------------------

void Meeting::gather(Deadline deadline) {
  for (Member& m : members_) {
    if (!is_self(m)) call(m);
  }
  forget_old_guests();
  for (Guest& guest : standing_.guests) {
    if (!stays(guest)) guest.channel.close();
  }
  while (!std::ranges::all_of(members_, [this](const Member& m) { return has_come(m); })) {
    if (deadline.passed()) {
      throw error(Code::timeout,
                  name(member(place_)) + " timed out waiting for " + absent() + standing_.acceptor.refusals());
    }
    step(deadline);
    for (Member& m : members_) {
      if (m.hung_up) lost(m);
    }
  }
}

// Those that have hung up before this meeting began have nothing to do with it.
std::vector<std::string> Meeting::allgather(std::string_view mine, Deadline deadline) {
  for (Member& m : members_) {
    if (!is_self(m)) send(m, std::string(mine));
  }
  const auto waits_for = [this](const Member& m) {
    return !is_self(m) && (m.strings.empty() || (!m.unsent.empty() && !m.hung_up));
  };
  for (;;) {
    look_for_losses();
    const auto waiting = std::ranges::find_if(members_, waits_for);
    if (waiting == members_.end()) break;
    if (deadline.passed())
      throw error(Code::timeout, name(member(place_)) + " timed out waiting for " + name(*waiting));
    step(deadline);
  }
  std::vector<std::string> all;
  for (Member& m : members_) {
    all.emplace_back(is_self(m) ? std::string(mine) : std::move(m.strings.front()));
    if (!is_self(m)) m.strings.pop_front();
  }
  return all;
}

void Meeting::while_meeting() {
  step(Deadline::after_seconds(0));
  look_for_losses();
}

// One that has made the communicator closes both connections. Between hosts the end of one may come before its string
// on the other.
void Meeting::look_for_losses() {
  for (Member& m : members_) {
    if (m.strings.empty() && over(m.from)) lost(m);
  }
}

void Meeting::give_up(const Error& error) noexcept {
  const SignalWatch none([] { return false; });  // a signal is the caller's, after the error
  try {
    ended_ = error;
    for (Member& m : members_) {
      m.told |= m.from.open();
      refuse(m.from, error);
      if (!m.dial && m.unsent.empty()) refuse(m.to, error);
    }
    for (Guest& guest : standing_.guests) {
      if (guest.proposal && refuse_if_known(guest)) guest.channel.close();
    }
    if (generation_ >= 0) remember_failure(generation_);
    const bool wrong = error.code() == Code::mismatch || error.code() == Code::invalid_argument;
    const Deadline until = Deadline::after_seconds(wrong ? kLingerSeconds : 0);
    const auto absent = [this](const Member& m) {
      return !is_self(m) && !m.told && (declines_ || (m.dial && m.dial->cause() != ECONNREFUSED));
    };
    while (!until.passed() && std::ranges::any_of(members_, absent)) linger(until);
  } catch (const std::exception&) {  // the others find out by the end of the connections
  }
}

void Meeting::decline(const Error& error) noexcept {
  declines_ = true;
  forget_old_guests();
  give_up(error);
}

std::vector<Rank> Meeting::joined() const {
  // Groups of which nobody is in both may have the same number.
  using Group = std::pair<int64_t, Digest>;
  std::vector<Group> former;
  for (const Member& m : members_) {
    former.push_back(is_self(m) ? Group{standing_.former, standing_.former_list}
                                : Group{m.proposal->former, m.proposal->former_list});
  }
  const auto first = std::ranges::find_if(former, [](const Group& group) { return group.first >= 0; });
  std::vector<Rank> ranks;
  for (size_t i = 0; first != former.end() && i < former.size(); ++i) {
    if (former[i] != *first) ranks.push_back(static_cast<Rank>(i));
  }
  return ranks;
}

void Meeting::linger(Deadline until) {
  try {
    step(until);
  } catch (const Error&) {  // others give up, too
  }
}

void Meeting::lost(Member& m) {
  // A process that gives up sends its error on two connections, and this one may have seen the end of the other.
  const Deadline until = Deadline::after_seconds(kLastWordsSeconds);
  for (Channel* channel : {&m.to, &m.from}) hear_out(*channel, until);
  throw error(Code::peer_lost, name(m) + " is dead, or its endpoint is closed");
}

// ---- steps --------------------------------------------------------------------------------------------------------

// Waits for a short while, and handles what has come.
void Meeting::step(Deadline deadline) {
  std::vector<pollfd> fds;
  standing_.acceptor.add_to(fds);
  const size_t accepting = fds.size();
  for (const Member& m : members_) {
    pollfd out{readable(m.to) ? m.to.fd() : -1, static_cast<short>(m.unsent.empty() ? POLLIN : POLLIN | POLLOUT), 0};
    if (m.dial && m.dial->going()) out = m.dial->wanted();
    fds.push_back(out);
    fds.push_back({readable(m.from) ? m.from.fd() : -1, POLLIN, 0});
  }
  for (const Guest& guest : standing_.guests) {
    fds.push_back({guest.channel.fd(), static_cast<short>(guest.proposal ? POLLRDHUP : POLLIN), 0});
  }
  if (poll_slice(fds, deadline) <= 0) {
    for (pollfd& fd : fds) fd.revents = 0;
  }
  const pollfd* came = &fds[accepting];
  for (Member& m : members_) {
    const bool out = (came++)->revents != 0, in = (came++)->revents != 0;
    if (is_self(m)) continue;
    if (m.dial && !m.dial->going()) {
      if (m.next_try.passed()) call(m);
    } else if (out) {
      m.dial ? go_on_dialing(m) : watch(m);
    }
    if (in) receive(m);
  }
  // stays() may throw: each guest is where it belongs then, or closed.
  for (Guest& guest : standing_.guests) {
    if ((came++)->revents == 0) continue;
    if (guest.proposal || !receive(guest) || !stays(guest)) guest.channel.close();
  }
  std::erase_if(standing_.guests, [](const Guest& guest) { return !guest.channel.open(); });
  accept(standing_.acceptor.serve(std::span(fds).first(accepting)));
}

void Meeting::accept(std::vector<AcceptedRank> accepted) {
  for (AcceptedRank& one : accepted) {
    if (standing_.self.on_unix() && standing_.secret.empty() && !same_user(one.channel.fd())) continue;
    one.channel.put(wire::piece(wire::PieceKind::welcome, ""));
    if (!one.channel.write()) continue;
    if (standing_.guests.size() == kMostGuests) standing_.guests.pop_front();
    standing_.guests.push_back({std::move(one.channel), one.who.job, "", {}});
  }
}

// ---- what this endpoint dials ---------------------------------------------------------------------------------------

void Meeting::call(Member& m) {
  const wire::Introduction me{.rank = place_,
                              .size = static_cast<int>(members_.size()),
                              .pid = static_cast<uint32_t>(::getpid()),
                              .job = text_of(standing_.self.id)};
  m.dial.emplace(m.handle.address, key_of(m.handle, standing_.secret), me);
  go_on_dialing(m);
}

void Meeting::go_on_dialing(Member& m) {
  const Dial::State state = m.dial->advance();
  if (m.dial->going()) return;
  if (state == Dial::State::refused) throw m.dial->refusal();
  if (state != Dial::State::welcomed) {
    const int cause = m.dial->cause();
    if (cause == ECONNREFUSED && !ended_) lost(m);
    if (cause == EMFILE || cause == ENFILE) {
      throw error(Code::backend, "cannot connect to " + name(m) + ": " + std::strerror(cause));
    }
    m.tries = std::min(m.tries + 1, 6);
    m.next_try = Deadline::after_seconds(0.001 * (1 << m.tries));
    return;
  }
  if (m.handle.on_unix() && standing_.secret.empty() && !same_user(m.dial->fd())) {
    throw error(Code::unsupported, name(m) + " belongs to another user");
  }
  m.to = std::move(m.dial->channel());
  m.dial.reset();
  propose(m);
  if (ended_ && m.unsent.empty()) refuse(m.to, *ended_);  // it belongs to the proposal, so it comes behind it
}

void Meeting::propose(Member& m) {
  const auto link = standing_.links.find(m.handle.id);
  const bool linked = link != standing_.links.end() && !standing_.network->lost(link->second.process);
  m.link = linked ? link->second.number : 0;
  Proposal proposal{.generation = generation_,
                    .former = standing_.former,
                    .former_list = standing_.former_list,
                    .place = place_,
                    .connection = m.link,
                    .list = list_,
                    .words = words(),
                    .failed = {}};
  for (const auto& [generation, failure] : standing_.failed) {
    proposal.failed.push_back({generation, generation == generation_ ? failed_before_ : failure.times});
  }
  send(m, pack(proposal));
}

void Meeting::send(Member& m, std::string text) {
  Message& message = m.unsent.emplace_back(std::move(text));
  message.pieces = wire::pieces(message.text);
  flush(m);
}

void Meeting::flush(Member& m) {
  while (readable(m.to)) {
    if (!m.to.write()) {
      m.hung_up = true;
      return;
    }
    if (!m.to.idle() || m.unsent.empty()) return;
    if (m.sent_pieces == m.unsent.front().pieces.size()) {
      m.unsent.pop_front();
      m.sent_pieces = 0;
    } else {
      m.to.put(m.unsent.front().pieces[m.sent_pieces++]);
    }
  }
}

// The other end of a connection that this endpoint has dialed sends only errors.
void Meeting::watch(Member& m) {
  while (read(m.to, &m.told)) continue;
  m.hung_up |= over(m.to);
  flush(m);
}

// ---- what others dial -----------------------------------------------------------------------------------------------

void Meeting::receive(Member& m) {
  while (const auto frame = read(m.from, &m.told)) {
    if (auto message = add(m.received, *frame)) m.strings.push_back(std::move(*message));
    // A member is ahead by one round at most.
    if (m.received.size() > kLargestString || m.strings.size() > 2) {
      throw error(Code::backend, name(m) + " sent nonsense");
    }
  }
  m.hung_up |= over(m.from);
}

}  // namespace a2a::endpoint
