#include "transport/hosts/host_fold.h"

#include <algorithm>
#include <utility>

namespace a2a::hosts {

HostFold::HostFold(const Signature& signature, std::span<const Run> output, std::vector<From> hosts)
    : folder_(signature.fold, signature.dtype),
      elem_bytes_(signature.dtype.bytes()),
      output_(output.begin(), output.end()),
      hosts_(std::move(hosts)),
      average_(signature.fold == Fold::avg) {}

bool HostFold::step() {
  for (size_t left = kStepBytes / elem_bytes_ * elem_bytes_; left > 0 && next_ < output_.size();) {
    const size_t bytes = std::min(left, output_[next_].bytes);
    fold(bytes);
    left -= bytes;
    if (output_[next_].bytes == 0) ++next_;
  }
  return next_ == output_.size();
}

void HostFold::fold(size_t bytes) {
  const size_t elems = bytes / elem_bytes_;
  all_.clear();
  for (From& host : hosts_) {
    if (host.parts.size() > 1) {
      of_host_.assign(host.parts.begin(), host.parts.end());
      folder_.fold(of_host_, elems, host.parts[0]);
    }
    all_.insert(all_.end(), average_ ? host.ranks : 1, host.parts[0]);
  }
  Run& output = output_[next_];
  if (output.strides == nullptr) {
    folder_.fold(all_, elems, output.data);
  } else {
    packed_.resize(bytes);
    folder_.fold(all_, elems, packed_.data());
    scatter(output, 0, bytes, packed_.data());
  }
  output = output.part(bytes, output.bytes - bytes);
  for (From& host : hosts_) {
    for (std::byte*& part : host.parts) part += bytes;
  }
}

}  // namespace a2a::hosts
