// One operation in flight.
#pragma once

#include "a2a/types.h"

namespace a2a {

// Thrown when a signal ended a wait and the signal watch wants the call to end.
class A2A_API Interrupted : public Error {
 public:
  Interrupted() : Error(Code::aborted, "interrupted by a signal") {}
};

// While it lives, waits of this thread inside other calls check for signals: when one arrives, they call `interrupted`,
// and if that returns true, the call throws Interrupted. Language bindings need that.
class A2A_API SignalWatch {
 public:
  using Interrupted = bool (*)();
  explicit SignalWatch(Interrupted interrupted);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // Throws a2a::Interrupted if the innermost watch of this thread says so. Requires that the caller holds no mutex:
  // `interrupted` may wait for a lock of the language, whose holder may wait for that mutex.
  static void look();

 private:
  Interrupted before_;
};

// Any thread may use it. Requires that the buffers of the operation stay alive until it is finished, or until the
// communicator's transport is destroyed.
class A2A_API Work {
 public:
  virtual ~Work() = default;

  // Whether the operation is finished, with or without an error. Also advances all of this rank's operations; never
  // blocks.
  virtual bool done() = 0;

  // Blocks this thread until the operation is finished (true), the deadline passes, or a signal arrives (both false).
  // In the last two cases the operation goes on. Throws the operation's error once it has failed.
  virtual bool wait_until(Deadline deadline) = 0;

  // Blocks for a short time only, and never sleeps. For a caller that holds a lock which others want, such as an
  // interpreter's. Otherwise as wait_until().
  virtual bool wait_briefly() { return false; }

  // Blocks until finished. Throws the operation's error, or Error(timeout) when the deadline passes first; then the
  // operation goes on and may be waited for again.
  void wait(Deadline deadline = Deadline::never());

  // Work enqueued on the stream after this call sees the received data. Host transports wait().
  virtual void order_before(Stream) { wait(); }

  // Whether everything from that rank has arrived and may be read. A transport that cannot tell returns done().
  virtual bool arrived(Rank) { return done(); }

  // For a finished recv: the rank that sent the message. Otherwise -1.
  virtual Rank source() { return -1; }

  // Whether the caller may reuse the buffers of the operation. After a failure a network may still use them; they have
  // to stay alive until this is true.
  virtual bool let_go() { return done(); }
};

}  // namespace a2a
