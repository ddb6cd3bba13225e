// Connections that others have dialed and that are no member's yet: which of them this meeting takes, keeps or refuses.
#include <algorithm>

#include "endpoint/channels.h"
#include "endpoint/meeting.h"

namespace a2a::endpoint {
namespace {

constexpr size_t kMostFailed = 64, kLargestProposal = size_t{64} << 10;

bool has_hung_up(const Channel& channel) {
  pollfd fd{channel.fd(), POLLRDHUP, 0};
  return ::poll(&fd, 1, 0) > 0 && (fd.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace

void Meeting::forget_old_guests() {
  std::erase_if(standing_.guests,
                [](const Guest& guest) { return !guest.channel.open() || has_hung_up(guest.channel); });
}

// Returns whether the connection goes on.
bool Meeting::receive(Guest& guest) {
  while (!guest.proposal) {
    const auto frame = guest.channel.read();
    if (!frame) return !over(guest.channel);
    if (frame->kind == wire::PieceKind::refusal) return false;
    if (const auto message = add(guest.received, *frame)) {
      guest.proposal = unpack_proposal(*message);
      if (guest.proposal) return true;
      refuse(guest.channel, error(Code::unsupported, name(member(place_)) + " runs another version of this library"));
      return false;
    }
    if (guest.received.size() > kLargestProposal) return false;
  }
  return true;
}

// Looks at the proposal of a guest. Returns whether it stays one.
bool Meeting::stays(Guest& guest) {
  if (!guest.proposal) return true;
  const Proposal& theirs = *guest.proposal;
  if (refuse_if_known(guest)) return false;
  Member* const m = find(guest.id);
  if (theirs.generation == generation_) {
    if (m == nullptr || theirs.list != list_) {
      const std::string who = m != nullptr ? name(*m) : "an endpoint that " + name(member(place_)) + " does not list";
      disagree(guest, "the lists of endpoints disagree: that of " + name(member(place_)) + " has " + words() +
                          ", that of " + who + " has " + theirs.words);
    }
    if (m->proposal) return true;  // it has given up in between, and this meeting hears so on the first connection
    m->from = std::move(guest.channel);
    m->proposal = theirs;
    receive(*m);
    return false;
  }
  if (!misses(guest)) return true;
  disagree(guest, name(*m) + " connects in generation " + std::to_string(theirs.generation) + ", " +
                      name(member(place_)) + " in generation " + std::to_string(generation_));
}

// Whether this meeting waits for that guest, which is in another one. An endpoint that has finished this meeting, or
// has failed in it, may be in the next one already. One that has failed says so when this endpoint dials it.
bool Meeting::misses(const Guest& guest) {
  const Member* const m = find(guest.id);
  const Proposal& theirs = *guest.proposal;
  return m != nullptr && !m->proposal && generation_ >= 0 && theirs.former != generation_ &&
         theirs.times_failed(generation_) <= failed_before_;
}

// Tells a guest why it cannot meet this endpoint, and throws the same.
void Meeting::disagree(Guest& guest, const std::string& why) {
  Error reason = error(Code::mismatch, why);
  try {
    hear_out(guest.channel, Deadline::after_seconds(0));
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& theirs) {
    if (theirs.code() == Code::mismatch) reason = theirs;
  }
  refuse(guest.channel, reason);
  guest.channel.close();
  if (Member* const m = find(guest.id)) m->told = true;
  throw reason;
}

void Meeting::remember_failure(int64_t generation) {
  const uint64_t before = standing_.times_failed(generation);
  standing_.failed.insert_or_assign(generation, Failure{*ended_, before + 1});
  if (standing_.failed.size() > kMostFailed) standing_.failed.erase(standing_.failed.begin());
}

// Whether the error of this meeting is for that guest, too. One that declines may not know a generation: the first
// proposal of each member is of the meeting in which that one waits for it.
bool Meeting::concerns(const Guest& guest) {
  if (generation_ >= 0) return guest.proposal->generation == generation_;
  const Member* const m = find(guest.id);
  return m != nullptr && !m->told;
}

// Answers a guest whose meeting is over, or will not be.
bool Meeting::refuse_if_known(Guest& guest) {
  const int64_t theirs = guest.proposal->generation;
  if (ended_ && concerns(guest)) {
    if (Member* const m = find(guest.id)) m->told = true;
    if (generation_ < 0) remember_failure(theirs);
    refuse(guest.channel, *ended_);
    return true;
  }
  if (theirs == generation_) return false;
  if (const auto failed = standing_.failed.find(theirs); failed != standing_.failed.end()) {
    // It may try that generation again, and then knows of the error.
    if (guest.proposal->times_failed(theirs) >= failed->second.times && misses(guest)) return false;
    const Error& before = failed->second.error;
    refuse(guest.channel, Error(before.code(), before.what() + std::string("; ") + standing_.self.in_words() +
                                                   " has failed in this generation before"));
    return true;
  }
  if (!standing_.used.contains(theirs)) return false;
  refuse(guest.channel, {Code::mismatch,
                         "generation " + std::to_string(theirs) + " was already used by " + standing_.self.in_words()});
  return true;
}

}  // namespace a2a::endpoint
