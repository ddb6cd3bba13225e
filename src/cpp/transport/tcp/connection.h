// A connection to another process.
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

// The socket does not block. Messages and memory are sent and received without a copy, except for less than a page on
// the way in. Outgoing frames are queued until the socket takes them: messages, which the transport bounds, and parts
// of memory, which stay in place.
//
// Only one thread at a time may use it.
class Connection {
 public:
  using Deliver = std::function<void(std::string message)>;

  // `who` names the peer in the texts of errors: "pid 17 at 10.0.0.3". `early` are bytes that came with the handshake.
  Connection(Socket socket, std::string who, std::string early);

  int fd() const { return socket_.fd(); }
  bool open() const { return socket_.open(); }
  // Set when the connection has ended without the peer's goodbye.
  const std::optional<hosts::Loss>& loss() const { return loss_; }

  // Each of these writes what the socket takes now. After the end they do nothing.
  void post(std::string message);
  void send(uint32_t tag, FlightPtr flight);
  void receive(uint32_t tag, FlightPtr flight);
  // The number of bytes of memory sent and received.
  uint64_t moved() const { return moved_; }
  // Abandons a flight. Its memory is not accessed after this.
  void abandon(Flight& flight);
  // Withdraws the receives with this tag. Requires that nothing was sent for them.
  void withdraw(uint32_t tag);

  // Read and write without blocking. read() takes a bounded amount.
  void read(const Deliver& deliver);
  void write();
  // Whether frames wait for the socket to take them; whether messages do not.
  bool has_more() const { return !frames_.empty() || outgoing_.have_turns(); }
  bool flushed() const { return frames_.empty() || (frames_.size() == 1 && frames_.front().flight != nullptr); }

  // Sends a goodbye, if the socket takes it, and closes.
  void leave();
  // Call in a forked child: releases the socket, which belongs to the parent.
  void forget() { socket_.release(); }

 private:
  struct Frame {
    Head head;
    std::string message;
    FlightPtr flight;        // of a part of memory
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
  bool in_order_ = false;  // the peer has sent its goodbye

  std::deque<Frame> frames_;   // to be written; at most one part of memory
  size_t written_ = 0;         // bytes of the first
  bool write_failed_ = false;  // nothing more is written
  OutgoingRuns outgoing_;

  IncomingRuns incoming_;
  std::byte head_[sizeof(Head)];
  size_t head_bytes_ = 0;  // bytes of the head that have come
  Head current_;
  size_t left_ = 0;  // bytes of its body that have not come
  std::string message_;
  FlightPtr flight_;
  std::string early_;
  uint64_t moved_ = 0;
};

}  // namespace a2a::tcp
