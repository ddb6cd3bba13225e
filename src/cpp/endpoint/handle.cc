#include "endpoint/handle.h"

#include <algorithm>
#include <cstring>

#include "bootstrap/sha256.h"
#include "runtime/object_bytes.h"

namespace a2a::endpoint {
namespace {

constexpr std::string_view kPrefix = "a2a-endpoint-", kVersion = "1", kSeparator = ":";
constexpr std::string_view kDigits = "0123456789abcdef";

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// Returns the bytes; nothing when the text is not hexadecimal.
std::string from_hex(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    const size_t high = kDigits.find(text[i]), low = kDigits.find(text[i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return "";
    bytes += static_cast<char>(high << 4 | low);
  }
  return text.size() % 2 == 0 ? bytes : "";
}

Digest mac(std::string_view body, std::string_view secret) {
  std::string text = "a2a endpoint's handle ";
  text += body;
  return hmac_sha256(secret, text);
}

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw Error(Code::invalid_argument, what + " " + why);
}

}  // namespace

std::string text_of(const Id& id) { return hex({reinterpret_cast<const char*>(id.data()), id.size()}); }

std::string pack(const Handle& handle, std::string_view secret) {
  const std::string_view address{reinterpret_cast<const char*>(&handle.address.raw), handle.address.length};
  const std::string body =
      wire::pack_strings({std::string(object_bytes(handle.id)), std::string(object_bytes(handle.pid)), handle.node,
                          handle.network, std::string(address)});
  std::string text(kPrefix);
  text += kVersion;
  text += kSeparator;
  return text + hex(body) + hex(as_text(mac(body, secret)));
}

Handle unpack(const std::string& text, std::string_view secret, const std::string& what) {
  if (!text.starts_with(kPrefix) || text.size() > kLongestHandle) refuse(what, "is no handle of an endpoint");
  const std::string_view rest = std::string_view(text).substr(kPrefix.size());
  const size_t end = rest.find(kSeparator);
  if (end == std::string_view::npos) refuse(what, "is no handle of an endpoint");
  if (rest.substr(0, end) != kVersion) {
    refuse(what, "is of version " + std::string(rest.substr(0, std::min<size_t>(end, 8))) +
                     " of handles, and this library reads version " + std::string(kVersion));
  }
  const std::string bytes = from_hex(rest.substr(end + 1));
  if (bytes.size() <= sizeof(Digest)) refuse(what, "is no handle of an endpoint, or a part of one");
  const std::string body = bytes.substr(0, bytes.size() - sizeof(Digest));
  if (!same_mac(std::string_view(bytes).substr(body.size()), as_text(mac(body, secret)))) {
    refuse(what, "was changed on its way, or is of another job: its endpoint has another secret, or none");
  }
  const auto parts = wire::unpack_strings(body, 5);
  Handle handle;
  if (!parts || (*parts)[0].size() != sizeof(handle.id) || (*parts)[1].size() != sizeof(handle.pid) ||
      (*parts)[4].size() > sizeof(handle.address.raw)) {
    refuse(what, "is no handle of an endpoint");
  }
  std::memcpy(handle.id.data(), (*parts)[0].data(), sizeof(handle.id));
  std::memcpy(&handle.pid, (*parts)[1].data(), sizeof(handle.pid));
  handle.node = (*parts)[2];
  handle.network = (*parts)[3];
  std::memcpy(&handle.address.raw, (*parts)[4].data(), (*parts)[4].size());
  handle.address.length = static_cast<socklen_t>((*parts)[4].size());
  return handle;
}

std::string key_of(const Handle& handle, std::string_view secret) {
  return std::string(as_text(hmac_sha256(secret, "a2a endpoint " + text_of(handle.id))));
}

}  // namespace a2a::endpoint
