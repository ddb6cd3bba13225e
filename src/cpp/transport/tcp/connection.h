// A connection to another process: what goes out, what comes in, and how it ends.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "bootstrap/sockets.h"
#include "transport/hosts/network.h"
#include "transport/tcp/flight.h"
#include "transport/tcp/frame.h"

namespace a2a::tcp {

// The socket does not block. Messages and memory go straight from where they are to the socket, and from the socket to
// where they belong; only what is shorter than a page may be copied once on the way in. What is to go out is kept until
// the socket takes it: messages, which the transport bounds, and parts of memory, which stay where they are.
//
// Not for two threads at once.
class Connection {
 public:
  using Deliver = std::function<void(std::string message)>;

  // `who` is for messages: "pid 17 at 10.0.0.3". `heard` has come from there already.
  Connection(Socket socket, std::string who, std::string heard);

  int fd() const { return socket_.fd(); }
  bool open() const { return socket_.open(); }
  // Set once it has ended, unless the other process said goodbye before.
  const std::optional<hosts::Loss>& loss() const { return loss_; }

  // Each of these writes what the socket takes now. After the end they do nothing.
  void post(std::string message);
  void send(uint32_t tag, FlightPtr flight);
  void receive(uint32_t tag, FlightPtr flight);
  // Bytes of memory that have gone out or come in.
  uint64_t moved() const { return moved_; }
  // The memory of the flight is not touched after this.
  void abandon(Flight& flight);
  // No receive waits with this tag any more; nothing was sent for those that did.
  void withdraw(uint32_t tag);

  // Both do what they can without blocking, and read() no more than a bounded amount.
  void read(const Deliver& deliver);
  void write();
  // Whether something waits for the socket to take it; whether messages do.
  bool has_more() const { return !frames_.empty() || departures_.have_turns(); }
  bool flushed() const { return frames_.empty() || (frames_.size() == 1 && frames_.front().flight != nullptr); }

  // Says goodbye, as far as the socket takes it, and closes.
  void leave();
  // The socket belongs to another process: a forked child closes nothing.
  void forget() { socket_.release(); }

 private:
  struct Frame {
    Head head;
    std::string message;
    FlightPtr flight;        // of memory
    size_t from_flight = 0;  // bytes
    size_t body() const { return message.size() + from_flight; }
  };

  void put(FrameKind kind, uint32_t tag, uint64_t bytes);
  bool refill();
  void written(size_t bytes);

  void take(const std::byte* bytes, size_t n, const Deliver& deliver);
  void advance_body(size_t n, const Deliver& deliver);
  bool begin(const Head& head);
  std::byte* body();
  size_t body_room() const;
  void end(const std::string& how);

  Socket socket_;
  std::string who_;
  std::optional<hosts::Loss> loss_;
  bool in_order_ = false;  // the other process has said goodbye

  std::deque<Frame> frames_;  // to be written; one of memory at most
  size_t written_ = 0;        // of the first
  bool mute_ = false;         // the socket takes nothing any more
  Departures departures_;

  Arrivals arrivals_;
  std::byte head_[sizeof(Head)];
  size_t head_bytes_ = 0;  // that have come of the head
  Head current_;
  size_t left_ = 0;  // of its body
  std::string message_;
  FlightPtr flight_;
  std::string heard_;
  uint64_t moved_ = 0;
};

}  // namespace a2a::tcp
