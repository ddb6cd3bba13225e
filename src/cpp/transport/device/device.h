// One accelerator, as its driver offers it: streams of work and events in them.
#pragma once

#include <optional>
#include <string>

#include "a2a/types.h"

namespace a2a::device {

using Event = void*;

// All calls want the device to be current (see Current), and throw Error(backend) with the driver's words.
class Device {
 public:
  virtual ~Device() = default;

  virtual Memory memory() const = 0;
  virtual int index() const = 0;
  std::string name() const { return std::string(to_string(memory())) + ":" + std::to_string(index()); }

  // What no other device anywhere has; empty where the driver does not say.
  virtual std::string uuid() const { return {}; }

  virtual Stream new_stream() = 0;  // that does not wait for the default stream
  virtual void delete_stream(Stream stream) noexcept = 0;
  virtual Event new_event() = 0;
  virtual void delete_event(Event event) noexcept = 0;

  virtual void record(Event event, Stream stream) = 0;
  // Whether everything before the event's last record is done.
  virtual bool reached(Event event) = 0;
  // What is enqueued on the stream from now on waits for the event.
  virtual void order(Stream stream, Event event) = 0;
  // What the stream failed with, if it did and the driver says so: nothing that was enqueued there will be done.
  virtual std::optional<std::string> failure(Stream) { return std::nullopt; }
  // Whether the stream records a graph instead of running. Throws for a stream that is none, is another device's, or
  // records what can no longer become a graph.
  virtual bool capturing(Stream stream) = 0;
  // Whether a null stream is one.
  virtual bool has_default_stream() const = 0;

  // Makes the device the calling thread's current one for a while.
  class Current {
   public:
    explicit Current(const Device& device) : device_(device), outer_(current) {
      if (outer_ == &device) return;
      before_ = device.enter();
      current = &device;
    }
    ~Current() {
      if (outer_ == &device_) return;
      current = outer_;
      device_.leave(before_);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    static inline thread_local const Device* current = nullptr;

    const Device& device_;
    const Device* const outer_;
    void* before_ = nullptr;
  };

 private:
  virtual void* enter() const = 0;  // returns what leave() needs
  virtual void leave(void* before) const noexcept = 0;
};

}  // namespace a2a::device
