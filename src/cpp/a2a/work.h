// One operation in flight.
#pragma once

#include "a2a/types.h"

namespace a2a {

// A signal ended a wait, and whoever looked at it wants the call to end.
class A2A_API Interrupted : public Error {
 public:
  Interrupted() : Error(Code::aborted, "interrupted by a signal") {}
};

// While it lives, waits of this thread inside other calls look at signals: when one arrives, `interrupted` is asked,
// and if it says so, the call ends with Interrupted. Language bindings need that.
class A2A_API SignalWatch {
 public:
  using Interrupted = bool (*)();
  explicit SignalWatch(Interrupted interrupted);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // Throws a2a::Interrupted if the innermost watch of this thread says so.
  static void look();

 private:
  Interrupted before_;
};

// Safe to use from any thread. The buffers of the operation must stay alive until it is finished, or until the
// communicator's transport is destroyed.
class A2A_API Work {
 public:
  virtual ~Work() = default;

  // Whether the operation is finished, well or not. Lends a hand to all of this rank's operations; never blocks.
  virtual bool done() = 0;

  // Blocks this thread until the operation is finished (true), the deadline passes, or a signal arrives (both false).
  // The operation goes on in the last two cases. Throws the operation's error once it has failed.
  virtual bool wait_until(Deadline deadline) = 0;

  // Blocks for a few microseconds at most, and without letting anything else have the CPU, which is none too long for a
  // caller that holds a lock others want, such as an interpreter's. Otherwise as wait_until().
  virtual bool wait_briefly() { return false; }

  // Blocks until finished. Throws the operation's error, or Error(timeout) when the deadline passes first; in the
  // latter case the operation goes on and may be waited for again.
  void wait(Deadline deadline = Deadline::never());

  // Work enqueued on the stream after this call sees the received data. For host transports the same as wait().
  virtual void order_before(Stream) { wait(); }

  // Whether everything from that rank has arrived and may be read. A transport that cannot tell says so when all is
  // done.
  virtual bool arrived(Rank) { return done(); }

  // Of a recv that is over: the rank that has sent what came. -1 otherwise.
  virtual Rank source() { return -1; }

  // Whether the buffers of the operation are the caller's again. Where an operation failed, a network may hold on to
  // them for longer than it was in flight; they have to stay alive until then.
  virtual bool let_go() { return done(); }
};

}  // namespace a2a
