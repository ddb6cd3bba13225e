// Whether ranks of several hosts use UCX (A2A_NETWORK). Not public.
#pragma once

#include <functional>
#include <memory>

#include "a2a/bootstrap.h"
#include "bootstrap/sha256.h"
#include "transport/hosts/network.h"

namespace a2a::ucx {

// Collective over the bootstrap. Returns the network over UCX if the ranks choose it, nullptr if they choose TCP.
// Throws Error(mismatch) when they choose differently, Error(unsupported) when A2A_NETWORK=ucx cannot be had. `key` is
// of the job; `meanwhile` is called every few milliseconds.
std::shared_ptr<hosts::Network> connect_if_chosen(Bootstrap& bootstrap, Rank rank, const Digest& key,
                                                  const std::function<void()>& meanwhile, Deadline deadline);

}  // namespace a2a::ucx
