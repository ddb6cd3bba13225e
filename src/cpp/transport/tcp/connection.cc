#include "transport/tcp/connection.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace a2a::tcp {
namespace {

// The most bytes that are read ahead: heads and messages that may follow.
constexpr size_t kAhead = 4096;
// A message takes at most this much more memory than has come of it.
constexpr size_t kGrowth = size_t{1} << 20;
// The most bytes that are read or written at once, so that deadlines are checked soon.
constexpr size_t kMostAtOnce = size_t{1} << 20;

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

// Scratch memory for bytes that are discarded.
constexpr size_t kScratchBytes = size_t{16} << 10;
std::byte* scratch() {
  thread_local std::array<std::byte, kScratchBytes> bytes;
  return bytes.data();
}

}  // namespace

Connection::Connection(Socket socket, std::string who, std::string early)
    : socket_(std::move(socket)), who_(std::move(who)), early_(std::move(early)) {}

// ---- sending ------------------------------------------------------------------------------------------------------

void Connection::post(std::string message) {
  if (!open() || write_failed_) return;
  const Head head{FrameKind::message, 0, message.size()};
  frames_.push_back({head, std::move(message), nullptr});
  write();
}

void Connection::put(FrameKind kind, uint32_t tag, uint64_t bytes) {
  if (!open() || write_failed_) return;
  frames_.push_back({{kind, tag, bytes}, {}, nullptr});
  write();
}

void Connection::send(uint32_t tag, FlightPtr flight) {
  outgoing_.add(tag, std::move(flight));
  write();
}

void Connection::receive(uint32_t tag, FlightPtr flight) {
  const uint64_t bytes = flight->left;
  incoming_.add(tag, std::move(flight));
  put(FrameKind::ready, tag, bytes);
}

void Connection::abandon(Flight& flight) {
  flight.abandoned = true;
  // The rest of a part whose head was sent still has to be sent, from a copy.
  for (size_t i = 0; i < frames_.size(); ++i) {
    Frame& frame = frames_[i];
    if (frame.flight.get() != &flight) continue;
    const size_t gone = i == 0 && written_ > sizeof(Head) ? written_ - sizeof(Head) : 0;
    frame.message.assign(gone, '\0');
    frame.message.append(reinterpret_cast<const char*>(flight.data), frame.from_flight - gone);
    frame.flight = nullptr;
    frame.from_flight = 0;
  }
}

void Connection::withdraw(uint32_t tag) {
  incoming_.withdraw(tag);
  put(FrameKind::withdrawn, tag, 0);
}

bool Connection::refill() {
  if (!frames_.empty()) return true;
  auto part = outgoing_.next(kPart);
  if (!part) return false;
  frames_.push_back({{FrameKind::memory, part->tag, part->bytes}, {}, std::move(part->flight), part->bytes});
  return true;
}

void Connection::write() {
  constexpr size_t kMostFrames = 16;
  for (size_t total = 0; open() && !write_failed_ && refill() && total < kMostAtOnce;) {
    std::array<iovec, 2 * kMostFrames> pieces;
    size_t n = 0, bytes = 0;
    const auto add = [&](const void* data, size_t length) {
      if (length == 0) return;
      pieces[n++] = {const_cast<void*>(data), length};  // iovec has one pointer type for both directions
      bytes += length;
    };
    for (size_t i = 0; i < std::min(frames_.size(), kMostFrames); ++i) {
      const Frame& frame = frames_[i];
      const size_t head = i == 0 ? std::min(written_, sizeof(Head)) : 0;
      const size_t body = i == 0 ? written_ - head : 0;
      add(reinterpret_cast<const std::byte*>(&frame.head) + head, sizeof(Head) - head);
      if (frame.flight != nullptr) {
        add(frame.flight->data, frame.from_flight - body);  // written() has advanced the flight
      } else {
        add(frame.message.data() + body, frame.message.size() - body);
      }
    }
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = n;
    const ssize_t sent = ::sendmsg(fd(), &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && would_block()) return;
    if (sent < 0) {  // read() finds out how it ended, and takes all that has come before
      write_failed_ = true;
      frames_.clear();
      return;
    }
    written(static_cast<size_t>(sent));
    if (static_cast<size_t>(sent) < bytes) return;
    total += bytes;
  }
}

void Connection::written(size_t bytes) {
  while (bytes > 0) {
    Frame& frame = frames_.front();
    const size_t now = std::min(bytes, sizeof(Head) + frame.body() - written_);
    if (frame.flight != nullptr) {
      const size_t before = std::max(written_, sizeof(Head)), after = std::max(written_ + now, sizeof(Head));
      frame.flight->data += after - before;
      frame.flight->left -= after - before;
      moved_ += after - before;
    }
    written_ += now;
    bytes -= now;
    if (written_ < sizeof(Head) + frame.body()) return;
    frames_.pop_front();
    written_ = 0;
  }
}

// ---- receiving ----------------------------------------------------------------------------------------------------

void Connection::read(const Deliver& deliver) {
  if (!early_.empty()) {
    const std::string early = std::exchange(early_, {});
    take(reinterpret_cast<const std::byte*>(early.data()), early.size(), deliver);
  }
  std::array<std::byte, kAhead> ahead;
  for (size_t total = 0; open() && total < kMostAtOnce;) {
    const size_t room = body_room();
    iovec pieces[2] = {{left_ > 0 ? body() : nullptr, room}, {ahead.data(), room == left_ ? ahead.size() : 0}};
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = 2;
    const ssize_t got = ::recvmsg(fd(), &message, 0);  // which fails for a file that has got the number
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && would_block()) return;
    if (got <= 0) return end(got == 0 ? "its connection was closed" : std::strerror(errno));
    const size_t n = static_cast<size_t>(got), of_body = std::min(n, room);
    if (of_body > 0) advance_body(of_body, deliver);
    take(ahead.data(), n - of_body, deliver);
    if (n < room + pieces[1].iov_len) return;  // that was all
    total += n;
  }
}

// Takes bytes that were read ahead.
void Connection::take(const std::byte* bytes, size_t n, const Deliver& deliver) {
  while (n > 0 && open()) {
    size_t taken = 0;
    if (left_ > 0) {
      taken = std::min(n, body_room());
      std::memcpy(body(), bytes, taken);
      advance_body(taken, deliver);
    } else {
      taken = std::min(n, sizeof(Head) - head_bytes_);
      std::memcpy(head_ + head_bytes_, bytes, taken);
      head_bytes_ += taken;
      if (head_bytes_ == sizeof(Head)) {
        head_bytes_ = 0;
        std::memcpy(&current_, head_, sizeof(Head));
        if (!begin(current_)) {
          in_order_ = false;
          return end("it sent something that makes no sense");
        }
      }
    }
    bytes += taken;
    n -= taken;
  }
}

bool Connection::begin(const Head& head) {
  if (in_order_) return false;
  switch (head.kind) {
    case FrameKind::message:
      message_.clear();
      left_ = head.bytes;
      return head.bytes > 0 && head.bytes <= kMostMessage;
    case FrameKind::ready:
      if (!outgoing_.announce(head.tag, head.bytes, kMostAnnounced)) return false;
      write();
      return true;
    case FrameKind::memory:
      flight_ = incoming_.next(head.tag, head.bytes);
      left_ = head.bytes;
      return flight_ != nullptr;
    case FrameKind::withdrawn:
      return outgoing_.withdraw(head.tag);
    case FrameKind::goodbye:
      in_order_ = true;
      return true;
    default:
      return false;
  }
}

// The address for the next bytes of the body, and how many fit there.
std::byte* Connection::body() {
  if (current_.kind == FrameKind::memory) return flight_->abandoned ? scratch() : flight_->data;
  const size_t has = current_.bytes - left_;
  if (message_.size() == has) message_.resize(has + body_room());
  return reinterpret_cast<std::byte*>(message_.data()) + has;
}

size_t Connection::body_room() const {
  if (current_.kind == FrameKind::memory)
    return flight_ != nullptr && flight_->abandoned ? std::min(left_, kScratchBytes) : left_;
  const size_t has = current_.bytes - left_;
  return message_.size() > has ? message_.size() - has : std::min(left_, kGrowth);
}

void Connection::advance_body(size_t n, const Deliver& deliver) {
  left_ -= n;
  if (current_.kind == FrameKind::memory) {
    flight_->data += flight_->abandoned ? 0 : n;
    flight_->left -= n;
    moved_ += n;
    incoming_.note(current_.tag);
    if (left_ == 0) flight_ = nullptr;
  } else if (left_ == 0) {
    deliver(std::exchange(message_, {}));
  }
}

// ---- the end ------------------------------------------------------------------------------------------------------

void Connection::end(const std::string& how) {
  if (!in_order_) loss_ = hosts::Loss{Deadline::Clock::now(), how + " (" + who_ + ")"};
  frames_.clear();
  socket_ = Socket();
}

// Closes the connection. The kernel still sends what it has, unless bytes have come that were not read; so they are
// read.
void Connection::leave() {
  if (!open()) return;
  if (socket_.if_ours() < 0) return end("the program has closed its descriptor");
  put(FrameKind::goodbye, 0, 0);
  ::shutdown(fd(), SHUT_WR);
  constexpr int kPatience = 64;
  for (int i = 0; i < kPatience && ::recv(fd(), scratch(), kScratchBytes, 0) > 0; ++i) {
  }
  socket_ = Socket();
}

}  // namespace a2a::tcp
