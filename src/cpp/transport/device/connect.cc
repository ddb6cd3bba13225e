#include "transport/device/connect.h"

#include <cstring>
#include <exception>
#include <optional>
#include <string_view>

#include "runtime/object_bytes.h"
#include "transport/device/stream_transport.h"

namespace a2a::device {
namespace {

// The message of a rank to the others: its properties, or why it cannot take part.
struct Report {
  uint8_t failure = 0;  // 0, or a Code
  std::string text;     // the reason of the failure; otherwise the properties that have to be alike
  std::string device;   // "cuda:0"
  std::string uuid;     // of the device, if known
  std::string root;     // only of rank 0

  std::string pack() const {
    std::string all(1, static_cast<char>(failure));
    for (const std::string* part : {&text, &device, &uuid, &root}) {
      const uint64_t length = part->size();
      all.append(object_bytes(length));
      all += *part;
    }
    return all;
  }

  static Report unpack(std::string_view all) {
    const auto take = [&](size_t bytes) {
      if (all.size() < bytes) throw Error(Code::backend, "connect: unexpected length");
      const auto part = all.substr(0, bytes);
      all.remove_prefix(bytes);
      return part;
    };
    Report report;
    report.failure = static_cast<uint8_t>(take(1)[0]);
    for (std::string* part : {&report.text, &report.device, &report.uuid, &report.root}) {
      uint64_t length = 0;
      std::memcpy(&length, take(sizeof(length)).data(), sizeof(length));
      *part = take(length);
    }
    return report;
  }
};

Error as_error(const std::exception& error) {
  const auto* const own = dynamic_cast<const Error*>(&error);
  return own != nullptr ? *own : Error(Code::backend, error.what());
}

// Exchanges the reports of all ranks, or this rank's failure, and returns the reports. Throws when a rank failed, or
// the reports disagree.
std::vector<Report> exchange_reports(const DeviceMeeting& meeting, const std::string& what, const Report& mine,
                                     const std::optional<Error>& failure) {
  Report said = mine;
  if (failure) said = {static_cast<uint8_t>(failure->code()), failure->what(), {}, {}, {}};
  const auto all = meeting.tell_all(said.pack());
  if (failure) throw Error(failure->code(), what + failure->what());
  std::vector<Report> reports;
  for (const auto& text : all) reports.push_back(Report::unpack(text));
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].failure == 0) continue;
    auto code = Code::backend;
    if (reports[rank].failure <= static_cast<uint8_t>(Code::backend)) code = static_cast<Code>(reports[rank].failure);
    if (code == Code::invalid_argument) code = Code::mismatch;  // this rank's arguments were not the cause
    throw Error(code, what + "rank " + std::to_string(rank) + ": " + reports[rank].text);
  }
  for (size_t rank = 1; rank < reports.size(); ++rank) {
    if (reports[rank].text == reports[0].text) continue;
    throw Error(Code::mismatch, what + "rank 0 has " + reports[0].text + ", rank " + std::to_string(rank) + " has " +
                                    reports[rank].text);
  }
  return reports;
}

// Names two ranks on one device. Most libraries refuse that without naming the ranks.
std::string shared_device(const std::vector<Report>& reports) {
  for (size_t b = 1; b < reports.size(); ++b) {
    for (size_t a = 0; a < b && !reports[b].uuid.empty(); ++a) {
      if (reports[a].uuid != reports[b].uuid) continue;
      return "; rank " + std::to_string(a) + " (" + reports[a].device + ") and rank " + std::to_string(b) + " (" +
             reports[b].device + ") are on the same device";
    }
  }
  return {};
}

// Throws when this rank must not wait any longer for the others inside the vendor's library.
void check_wait(const DeviceMeeting& meeting) {
  SignalWatch::look();
  if (meeting.deadline.passed()) {
    throw Error(Code::timeout, "timed out; peers: " + meeting.host->whereabouts());
  }
  const auto lost = meeting.host->lost_peer();
  if (auto error = meeting.host->broken()) throw *error;
  if (lost) throw *lost;
  if (auto error = meeting.peer_refuses()) throw *error;
}

std::unique_ptr<Collectives> join(Vendor& vendor, Device& device, const DeviceMeeting& meeting,
                                  const std::string& root) {
  const Device::Current current(device);
  if (meeting.adopted != nullptr) return vendor.adopt(device, meeting.adopted, meeting.rank, meeting.size);
  return vendor.join(device,
                     {meeting.rank, meeting.size, root, meeting.rank_table, [&meeting] { check_wait(meeting); }});
}

// Tells the others that this rank could not join. They may be waiting for it inside the vendor's library, in
// check_wait().
[[noreturn]] void give_up(const DeviceMeeting& meeting, const std::string& what, const Error& cause) {
  const Error error(cause.code(), what + cause.what());
  if (error.code() == Code::peer_lost || error.code() == Code::timeout || error.code() == Code::aborted) {
    meeting.host->fail(error);
  } else {
    meeting.refuse(error.what());
  }
  throw error;
}

}  // namespace

std::shared_ptr<DeviceTransport> connect(Memory memory, int index, const DeviceMeeting& meeting) {
  const std::string what = std::string("connecting the ranks for ") + to_string(memory) + " memory: ";
  const bool rooted = meeting.adopted == nullptr && meeting.rank_table.empty();
  std::optional<Error> failure;
  Vendor* vendor = nullptr;
  std::unique_ptr<Device> device;
  Report mine;
  try {
    vendor = &vendor_of(memory);
    device = vendor->device(index);
    mine.text = vendor->version() + ", check=" + to_string(meeting.check) +
                (meeting.adopted != nullptr    ? ", an adopted communicator"
                 : !meeting.rank_table.empty() ? ", a rank table"
                                               : "");
    mine.device = device->name(), mine.uuid = device->uuid();
    const Device::Current current(*device);
    if (rooted && meeting.rank == 0) mine.root = vendor->new_root(*device);
  } catch (const std::exception& error) {
    failure = as_error(error);
  }
  const auto reports = exchange_reports(meeting, what, mine, failure);

  std::unique_ptr<Collectives> collectives;
  try {
    collectives = join(*vendor, *device, meeting, reports[0].root);
  } catch (const Interrupted& error) {
    meeting.host->fail(Error(Code::aborted, what + "rank " + std::to_string(meeting.rank) + ": " + error.what()));
    throw;
  } catch (const std::exception& error) {
    const Error cause = as_error(error);
    give_up(meeting, what,
            cause.code() == Code::backend ? Error(cause.code(), cause.what() + shared_device(reports)) : cause);
  }
  exchange_reports(meeting, what, {}, {});
  return std::make_shared<StreamTransport>(meeting.rank, std::move(device), std::move(collectives), meeting.host);
}

}  // namespace a2a::device
