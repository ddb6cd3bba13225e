// Messages between ranks of one host: which receive takes which, and the packets that say so. The bytes are pairs
// (ways/). They come with the header (eager), by one copy from the sender's memory (rendezvous), or in fragments that
// the sender copies to its segment. A send of few bytes is finished when the library has copied them.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/message.h"
#include "transport/shm/messages/mailboxes.h"
#include "transport/shm/policy/choose.h"
#include "transport/shm/ways/sent_memory.h"

namespace a2a::shm {

// All functions require the progress mutex. The caller breaks the communicator when one throws.
class Messages {
 public:
  // `matching` and `held` are those of all messages of this rank, with any host.
  Messages(Membership& membership, Matching& matching, HeldMessages& held);
  ~Messages();

  // Starts a message to or from a rank of this host, or from any rank.
  void start(const std::shared_ptr<MessageWork>& work);
  // Advances all messages without waiting. Returns whether anything moved.
  bool advance();
  // Whether advance() may have work: unfinished messages, replies to write, or receives that another host may match.
  bool active() const;
  const std::vector<std::shared_ptr<MessageWork>>& pending() const { return pending_; }
  // Whether an unfinished send or receive of this rank is under way.
  bool busy() const { return unfinished() != pending_.end(); }
  // Returns the first unfinished message whose deadline has passed, or nullptr.
  std::shared_ptr<MessageWork> expired(Deadline::Clock::time_point now) const;
  // Returns the first unfinished message that needs that rank of this host, or with `anybody` set, any rank; or
  // nullptr.
  std::shared_ptr<MessageWork> needing(Rank peer, bool anybody) const;
  void fail_all(const Error& error);
  // The first unfinished message. Requires busy().
  const Message& oldest() const { return (*unfinished())->message(); }

 private:
  // The most fragments unread, of a peer, at which a send of few bytes is still copied to a fragment and finished.
  static constexpr size_t kMostBuffered = 16;

  struct Arriving;
  struct Outgoing {
    std::shared_ptr<MessageWork> work;
    uint64_t id = 0;
    Cursor source;         // the bytes that were not copied to fragments
    uint64_t left = 0;     // of them
    size_t requested = 0;  // fragments that the receiver waits for
  };
  struct Reply {
    PacketHeader head;
    std::string text;
    std::shared_ptr<MessageWork> receive;  // to finish when the reply is written: the sender waits for it
  };
  // The messages between this rank and one peer.
  struct Channel {
    Channel(Membership& m, Rank peer) : mailboxes(m, peer) {}

    Mailboxes mailboxes;
    uint64_t sent = 0, received = 0;                         // messages
    std::deque<Reply> replies;                               // to be written
    std::deque<Outgoing> queued;                             // messages whose headers are to be written
    std::map<uint64_t, Outgoing> announced;                  // messages that the receiver has not copied, by id
    std::vector<std::byte*> fragments;                       // that the receiver has not read
    std::map<uint64_t, std::shared_ptr<Arriving>> arriving;  // messages not received completely, by id
    std::deque<std::shared_ptr<Arriving>> pulled;            // those copied from the sender's memory, in order
    std::optional<Error> late_refusal;                       // of a message whose send was finished before
  };

  std::vector<std::shared_ptr<MessageWork>>::const_iterator unfinished() const;
  Channel& channel(Rank peer);
  void begin(const std::shared_ptr<MessageWork>& work);
  void send_to_self(const std::shared_ptr<MessageWork>& work);

  // Sends (send.cc).
  bool write_packets(Rank peer, Channel& to);
  void write_reply(Rank peer, Channel& to, const Reply& reply);
  void announce(Rank peer, Channel& to, Outgoing message);
  Kind choose(Rank peer, Channel& to, const Outgoing& message);
  void write_fragment(Channel& to, Outgoing& message);
  void read_reply(Rank peer, Channel& to, const Mailboxes::Received& packet);
  void free_fragment(Rank peer, Channel& to, uint64_t where);

  // Receives (receive.cc).
  bool read_packets(Rank peer, Channel& from);
  void read_header(Rank peer, Channel& from, const Mailboxes::Received& packet);
  void read_fragment(Arriving& in, const PacketHeader& head);
  void meet(Arriving& in);
  void refuse(Arriving& in, const std::string& why);
  void receive_own(Arriving& in);
  void copy_here(Arriving& in);
  void acknowledge_fragment(Arriving& in);
  bool pull(Channel& from);

  Membership& m_;
  std::vector<std::unique_ptr<Channel>> channels_;  // by rank; empty where no message went
  Matching& matching_;
  std::vector<std::shared_ptr<MessageWork>> pending_;
  HeldMessages& held_;
  Sends sends_;      // of the message whose way is chosen
  size_t kept_ = 0;  // sends of this rank to itself whose bytes are copied, and wait for a receive
};

}  // namespace a2a::shm
