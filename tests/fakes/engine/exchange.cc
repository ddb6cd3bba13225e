// One operation's messages: announced, answered, moved.
#include <algorithm>
#include <cstring>
#include <random>

#include "engine/link.h"

namespace fake {

class Mesh::Exchange {
 public:
  Exchange(Mesh& mesh, const std::vector<Part>& sends, const std::vector<Part>& recvs, const Rules& rules)
      : mesh_(mesh), rules_(rules), sends_(ends_of(sends)), recvs_(ends_of(recvs)) {}

  ~Exchange() {
    const std::lock_guard lock(mesh_.mutex_);
    for (const auto& link : mesh_.links_) {
      if (!link) continue;
      for (Landing& landing : link->landings) landing.arrived = nullptr;
    }
  }

  Failure run(const std::function<bool()>& stop, std::optional<Clock::time_point> deadline) {
    for (const End& end : sends_) {
      if (end.part->peer != mesh_.rank) link(end).write({Frame::announce, 0, end.part->header});
    }
    self();
    std::unique_lock lock(mesh_.mutex_);
    while (!all_done()) {
      if (step(lock)) continue;
      if (stop()) return {Failure::aborted, "aborted"};
      if (deadline && Clock::now() > *deadline) return {Failure::timeout, waiting_for()};
      if (const int peer = gone(); peer >= 0) return mesh_.gone(peer);
      mesh_.changed_.wait_for(lock, std::chrono::milliseconds(5));
    }
    return mismatch_;
  }

 private:
  // One end of a message. Those with one peer are in order, those with different peers are not.
  struct End {
    const Part* part;
    bool matched = false;  // send: answered; receive: accepted or refused
    bool done = false;
  };

  static std::vector<End> ends_of(const std::vector<Part>& parts) {
    // Peers in an order that changes from call to call, because programs may not rely on one.
    const uint64_t mix = random_number();
    std::vector<End> ends;
    for (const Part& part : parts) ends.push_back({&part});
    std::stable_sort(ends.begin(), ends.end(), [&](const End& a, const End& b) {
      return hash(&a.part->peer, sizeof(int), mix) < hash(&b.part->peer, sizeof(int), mix);
    });
    return ends;
  }

  Link& link(const End& end) const { return *mesh_.links_[static_cast<size_t>(end.part->peer)]; }
  bool all_done() const {
    const auto done = [](const End& end) { return end.done; };
    return std::ranges::all_of(sends_, done) && std::ranges::all_of(recvs_, done);
  }

  // Does one thing that can be done; false when there is nothing to do but to wait.
  bool step(std::unique_lock<std::mutex>& lock) {
    for (End& end : recvs_) {
      if (end.part->peer == mesh_.rank || end.matched || !first_unmatched(recvs_, end)) continue;
      if (!link(end).announced.empty()) return answer(end, lock);
    }
    for (End& end : sends_) {
      if (end.part->peer == mesh_.rank || end.matched || !first_unmatched(sends_, end)) continue;
      if (!link(end).answers.empty()) return deliver(end, lock);
    }
    return false;
  }

  static bool first_unmatched(const std::vector<End>& ends, const End& end) {
    return &end == &*std::ranges::find_if(
                       ends, [&](const End& other) { return other.part->peer == end.part->peer && !other.matched; });
  }

  bool fits(const Header& theirs, const Header& mine) const {
    const bool same_call = theirs.kind == mine.kind && theirs.number == mine.number && theirs.bytes == mine.bytes;
    return same_call && (rules_.bytes_only || (theirs.count == mine.count && theirs.dtype == mine.dtype));
  }

  bool answer(End& end, std::unique_lock<std::mutex>& lock) {
    const Header theirs = link(end).announced.front();
    link(end).announced.pop_front();
    end.matched = true;
    Frame answer{Frame::accept, 0, theirs};
    if (!fits(theirs, end.part->header)) {
      if (rules_.on_mismatch == OnMismatch::hang) return true;  // never answered, never done
      if (rules_.on_mismatch == OnMismatch::diagnose) {
        note(end.part->peer, theirs, mesh_.rank, end.part->header);
        answer = {Frame::refuse, 0, end.part->header};
        end.done = true;
      }
    }
    if (answer.type == Frame::accept) {
      answer.header.bytes = std::min(theirs.bytes, end.part->header.bytes);
      end.done = answer.header.bytes == 0;
      if (!end.done) link(end).landings.push_back({end.part->memory, &end.done});
    }
    lock.unlock();  // whoever reads the links needs it, and a write may have to wait for the peer's reader
    link(end).write(answer);
    lock.lock();
    return true;
  }

  bool deliver(End& end, std::unique_lock<std::mutex>& lock) {
    const Frame answer = link(end).answers.front();
    link(end).answers.pop_front();
    end.matched = end.done = true;
    if (answer.type == Frame::refuse) {
      note(mesh_.rank, end.part->header, end.part->peer, answer.header);
    } else if (answer.header.bytes > 0) {
      lock.unlock();
      link(end).write({Frame::data, 0, answer.header}, end.part->memory.data);
      lock.lock();
    }
    return true;
  }

  // Messages of this rank to itself.
  void self() {
    auto recv = recvs_.begin();
    for (End& send : sends_) {
      if (send.part->peer != mesh_.rank) continue;
      recv = std::find_if(recv, recvs_.end(), [&](const End& end) { return end.part->peer == mesh_.rank; });
      if (recv == recvs_.end()) return;  // the doubles refuse what has only one half
      End& into = *recv++;
      const Header &have = send.part->header, &want = into.part->header;
      send.done = into.done = fits(have, want) || rules_.on_mismatch != OnMismatch::hang;
      if (fits(have, want) || rules_.on_mismatch == OnMismatch::truncate) {
        if (const size_t bytes = std::min(have.bytes, want.bytes)) {
          std::memmove(into.part->memory.data, send.part->memory.data, bytes);
        }
      } else {
        note(mesh_.rank, have, mesh_.rank, want);
      }
    }
  }

  void note(int sender, const Header& have, int receiver, const Header& want) {
    if (mismatch_) return;
    mismatch_ = {Failure::mismatch, "rank " + std::to_string(sender) + " sends " + rules_.describe(have) + " to rank " +
                                        std::to_string(receiver) + ", which expects " + rules_.describe(want)};
  }

  // A peer that will not do its part any more, or -1. One that died is the cause when others have left.
  int gone() const {
    int found = -1;
    for (const auto* ends : {&sends_, &recvs_}) {
      for (const End& end : *ends) {
        if (end.done || end.part->peer == mesh_.rank) continue;
        if (link(end).closed && !link(end).left) return end.part->peer;
        if (link(end).left) found = end.part->peer;
      }
    }
    return found;
  }

  std::string waiting_for() const {
    for (const auto* ends : {&recvs_, &sends_}) {
      for (const End& end : *ends) {
        if (end.done) continue;
        return "rank " + std::to_string(mesh_.rank) + " waits in vain for rank " + std::to_string(end.part->peer) +
               (ends == &sends_ ? " to receive " : " to send ") + rules_.describe(end.part->header);
      }
    }
    return "";
  }

  Mesh& mesh_;
  const Rules& rules_;
  std::vector<End> sends_, recvs_;
  Failure mismatch_;
};

Failure Mesh::exchange(const std::vector<Part>& sends, const std::vector<Part>& recvs, const Rules& rules,
                       const std::function<bool()>& stop, std::optional<Clock::time_point> deadline) {
  return Exchange(*this, sends, recvs, rules).run(stop, deadline);
}

}  // namespace fake
