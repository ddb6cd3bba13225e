// One accelerator through its driver: streams of work, and events in them.
#pragma once

#include <optional>
#include <string>

#include "a2a/types.h"

namespace a2a::device {

using Event = void*;

// All functions require that the device is current (see Current). They throw Error(backend) with the driver's text.
class Device {
 public:
  virtual ~Device() = default;

  virtual Memory memory() const = 0;
  virtual int index() const = 0;
  std::string name() const { return std::string(to_string(memory())) + ":" + std::to_string(index()); }

  // A globally unique id of the device; empty where the driver has none.
  virtual std::string uuid() const { return {}; }

  virtual Stream new_stream() = 0;  // one that does not wait for the default stream
  virtual void delete_stream(Stream stream) noexcept = 0;
  virtual Event new_event() = 0;
  virtual void delete_event(Event event) noexcept = 0;

  virtual void record(Event event, Stream stream) = 0;
  // Whether the device has done everything before the event's last record.
  virtual bool reached(Event event) = 0;
  // Makes later work on the stream wait for the event.
  virtual void order(Stream stream, Event event) = 0;
  // Returns the error of a stream that failed, if the driver reports it. The rest of its work will not be done.
  virtual std::optional<std::string> failure(Stream) { return std::nullopt; }
  // Whether the stream is capturing a graph. Throws for a handle that is no stream, for a stream of another device, and
  // for an invalidated capture.
  virtual bool capturing(Stream stream) = 0;
  // Whether a null handle is a stream.
  virtual bool has_default_stream() const = 0;

  // Makes the device current for the calling thread, while it lives.
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
  virtual void* enter() const = 0;  // returns the argument of leave()
  virtual void leave(void* before) const noexcept = 0;
};

}  // namespace a2a::device
