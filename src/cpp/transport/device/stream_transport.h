// Operations on the memory of one device. A vendor's library enqueues them on a stream; the watch tracks them until
// they are done.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/device_transport.h"
#include "runtime/fork_guard.h"
#include "transport/device/vendor.h"

namespace a2a::device {

class StreamTransport;

// An operation on the device. It is finished when the device has reached its event.
class DeviceWork final : public Work {
 public:
  DeviceWork(std::shared_ptr<StreamTransport> transport, const Batch& batch);

  bool done() override;
  bool wait_until(Deadline deadline) override;
  void order_before(Stream stream) override;
  // The watch, and every query of the device, update it.
  bool let_go() override { return finished_.load(std::memory_order_acquire); }

 private:
  friend class StreamTransport;

  std::shared_ptr<StreamTransport> transport_;
  Signature signature_;
  Deadline deadline_;
  bool compared_;  // the ranks have compared it, so all peers take part
  Stream stream_;
  Event event_ = nullptr;       // nullptr: not enqueued yet, or recorded into a graph, which may run at any time
  std::shared_ptr<void> held_;  // what the vendor's library needs until it is done
  std::optional<Error> error_;
  std::atomic<bool> finished_{false};  // error_ is final then
};

class StreamTransport final : public DeviceTransport, public std::enable_shared_from_this<StreamTransport> {
 public:
  StreamTransport(Rank rank, std::unique_ptr<Device> device, std::unique_ptr<Collectives> collectives,
                  std::shared_ptr<Transport> host);
  ~StreamTransport() override;

  int index() const override { return device_->index(); }
  std::string name() const override { return device_->name(); }
  std::shared_ptr<void> make_current() const override { return std::make_shared<Device::Current>(*device_); }
  bool check(const Batch& batch, Stream stream) const override;
  std::shared_ptr<Work> start(Batch&& batch, Stream callers, bool recorded) override;
  void abort(std::string_view reason) noexcept override;
  void fail(const Error& error) noexcept override { end(error, true); }
  void let_go() noexcept override;
  void drain(Deadline deadline) override;
  void close() override;

  // For the watch: checks the operations in flight. Returns whether there are any; if not, the next start() registers
  // with the watch again.
  bool tend() noexcept;

 private:
  friend class DeviceWork;

  // "rank 1 (npu:0)"
  std::string where() const { return "rank " + std::to_string(rank_) + " (" + device_->name() + ")"; }
  bool inherited() const;
  void refuse_if_inherited() const;

  bool look(DeviceWork& work);
  void order_before(DeviceWork& work, Stream stream);
  Stream choose_stream(const Batch& batch, Stream callers);
  void board(const std::shared_ptr<DeviceWork>& work);
  bool enqueued(DeviceWork& work, const std::shared_ptr<void>& held);
  bool end(const Error& error, bool tell_peers) noexcept;
  void stop(std::span<const Stream> busy) noexcept;
  bool quiet() noexcept;
  Error cause_of(const Error& error);

  // The following require the mutex.
  bool reached(DeviceWork& work);
  void reap();
  void finish(DeviceWork& work);
  std::optional<Error> trouble();
  void throw_if_broken(const Signature& signature) const;
  Event take_event();

  const Rank rank_;
  const ForkGuard home_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Collectives> collectives_;
  const std::shared_ptr<Transport> host_;
  std::atomic<bool> ended_{false};  // broken_ is set
  std::mutex mutex_;                // guards what follows
  std::deque<std::shared_ptr<DeviceWork>> flights_;
  std::vector<Event> free_events_;
  Stream own_stream_;
  std::optional<Error> broken_;
  std::optional<Deadline::Clock::time_point> trouble_since_;
  bool watched_ = false;
};

}  // namespace a2a::device
