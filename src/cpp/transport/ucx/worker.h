// A worker of UCX: the sends and receives of this process, which match by tag.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/schedule.h"
#include "transport/ucx/library.h"

namespace a2a::ucx {

// One send or receive in flight. The worker keeps it until UCX no longer uses its memory.
class Request : public std::enable_shared_from_this<Request> {
 public:
  virtual ~Request() = default;
  // Called once, inside a call of the worker, which it may use.
  virtual void completed(Status status) = 0;

 private:
  friend class TagWorker;
  void* handle_ = nullptr;         // of UCX, while it is in flight
  std::shared_ptr<Request> self_;  // the same
};

// A message that has come and that no receive has matched.
struct Arrival {
  Tag tag = 0;
  size_t bytes = 0;
  TagMessage* message = nullptr;
};

// Only one thread at a time may call. Functions throw Error(backend) when UCX fails.
class TagWorker {
 public:
  // Called inside progress(), or a send, when the connection to a process has failed.
  using OnFailure = void (*)(void* argument, Endpoint* endpoint, Status status);

  explicit TagWorker(size_t processes);
  // Requires that close() has been called for all endpoints.
  ~TagWorker();
  TagWorker(const TagWorker&) = delete;
  TagWorker& operator=(const TagWorker&) = delete;

  const std::string& address() const { return address_; }
  Endpoint* connect(const std::string& address, OnFailure on_failure, void* argument);
  // Ends what is in flight to that process.
  void close(Endpoint* endpoint) noexcept;
  // Returns the transports and devices of a connection: "tcp/eth0".
  std::string devices(Endpoint* endpoint) const;

  void progress();
  // Returns a descriptor that becomes readable when something arrives or is sent after this call; -1 if something has
  // already, so that progress() is due, or if the transports of this machine have none.
  int arm();

  // The runs, and what they point to, must outlive the request.
  void send(Endpoint* to, Tag tag, std::span<const Iov> runs, const std::shared_ptr<Request>& request);
  void receive(Tag tag, std::span<const Iov> runs, const std::shared_ptr<Request>& request);
  std::optional<Arrival> probe(Tag tag, Tag mask);
  // With a null pointer it discards the message.
  void receive(void* data, const Arrival& arrival, const std::shared_ptr<Request>& request);
  // Ends a receive that nothing has matched. completed() is still called.
  void cancel(Request& request) noexcept;

 private:
  void open(uint64_t features, size_t processes);
  void close() noexcept;
  void begin(void* handle, const std::shared_ptr<Request>& request);
  static void sent(void* handle, Status status, void* request);
  static void received(void* handle, Status status, const TagInfo* info, void* request);
  static void finish(Request* request, Status status);

  const Library& api_;
  Context* context_ = nullptr;
  Worker* worker_ = nullptr;
  int events_ = -1;
  std::string address_;
};

}  // namespace a2a::ucx
