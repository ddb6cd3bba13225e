// NCCL: groups. Nothing happens before the outermost ncclGroupEnd of a thread; a call outside a group is a group of its
// own.
#include "nvidia/nccl_group.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace fake {
namespace {

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::string text;
  std::vector<std::pair<std::shared_ptr<NcclComm>, std::vector<NcclEnqueued>>> work;  // in the order of first use
  std::vector<std::pair<std::shared_ptr<NcclComm>, NcclJob>> inits;
};
thread_local Group group;

// Keeps the first error of a group: ncclGroupEnd returns it again.
ncclResult_t remember(ncclResult_t result) {
  if (group.depth > 0 && result && !group.error) {
    group.error = result;
    group.text = error();
  }
  return result;
}

// Messages with oneself have two halves. Where both are one address there is nothing to do.
ncclResult_t pair_self(int rank, Operation& operation) {
  const auto is_self = [&](const Part& part) { return part.peer == rank; };
  const auto sends = std::ranges::count_if(operation.sends, is_self);
  const auto recvs = std::ranges::count_if(operation.recvs, is_self);
  if (sends > recvs) return nccl_refuse(ncclInvalidUsage, "Trying to send to self without a matching recv");
  if (recvs > sends) return nccl_refuse(ncclInvalidUsage, "Trying to recv to self without a matching send");
  auto recv = operation.recvs.begin();
  for (auto send = operation.sends.begin(); send != operation.sends.end();) {
    if (!is_self(*send)) {
      ++send;
      continue;
    }
    recv = std::find_if(recv, operation.recvs.end(), is_self);
    if (send->memory.data != recv->memory.data) {
      ++send, ++recv;
    } else {
      send = operation.sends.erase(send);
      recv = operation.recvs.erase(recv);
    }
  }
  return ncclSuccess;
}

// What is received may overlap nothing. (A rank's own part of an all-gather may be where it will be.)
ncclResult_t check_overlaps(int rank, const Operation& operation) {
  for (size_t i = 0; i < operation.recvs.size(); ++i) {
    const Part& recv = operation.recvs[i];
    for (size_t j = 0; j < i; ++j) {
      if (overlap(recv.memory, operation.recvs[j].memory)) {
        return nccl_refuse(ncclInvalidArgument, "receive buffers overlap");
      }
    }
    for (const Part& send : operation.sends) {
      const bool in_place = operation.collective && recv.peer == rank && send.memory.data == recv.memory.data;
      if (!in_place && overlap(recv.memory, send.memory)) {
        return nccl_refuse(ncclInvalidArgument, "a send and a receive buffer overlap");
      }
    }
  }
  return ncclSuccess;
}

// The calls of one communicator in a group: the collectives one by one, then all messages at once.
struct Launch {
  std::shared_ptr<NcclComm> comm;
  std::vector<std::shared_ptr<Stream>> streams;
  std::vector<std::pair<Operation, uint64_t>> operations;
  std::vector<int> new_peers;
};

ncclResult_t prepare(const std::shared_ptr<NcclComm>& comm, std::vector<NcclEnqueued>& calls, Launch& launch) {
  launch.comm = comm;
  Operation messages{"ncclSend/ncclRecv", {}, {}, false, {}, {}, {}};
  std::vector<Operation> operations;
  for (NcclEnqueued& one : calls) {
    if (std::ranges::find(launch.streams, one.stream) == launch.streams.end()) launch.streams.push_back(one.stream);
    if (one.collective) {
      operations.push_back({one.name, std::move(one.sends), std::move(one.recvs), true, {}, {}, std::move(one.then)});
    } else {
      std::ranges::move(one.sends, std::back_inserter(messages.sends));
      std::ranges::move(one.recvs, std::back_inserter(messages.recvs));
    }
  }
  for (const auto& stream : launch.streams) {
    if (stream->capture() != launch.streams.front()->capture()) {
      return nccl_refuse(ncclInvalidUsage,
                         "Streams given to a communicator within a NCCL group must either be all "
                         "uncaptured or all captured by the same graph.");
    }
  }
  if (const ncclResult_t wrong = pair_self(comm->rank, messages)) return wrong;
  operations.push_back(std::move(messages));
  for (Operation& operation : operations) {
    if (operation.sends.empty() && operation.recvs.empty()) continue;
    if (const ncclResult_t wrong = check_overlaps(comm->rank, operation)) return wrong;
    const auto number = comm->links->count();
    if (!number) return ncclInternalError;
    for (const auto* parts : {&operation.sends, &operation.recvs}) {
      for (const Part& part : *parts) {
        if (part.peer != comm->rank && comm->connected.insert(part.peer).second) {
          launch.new_peers.push_back(part.peer);
        }
      }
    }
    launch.operations.emplace_back(std::move(operation), *number);
  }
  return ncclSuccess;
}

// The first message to a peer waits, in the host, until that peer calls too.
ncclResult_t connect(const Launch& launch) {
  const auto stop = [&] { return launch.comm->aborting.load() || launch.comm->links->ended(); };
  const Failure failure = launch.comm->links->mesh->await("connect", launch.new_peers, stop);
  if (failure) launch.comm->links->fail(failure);
  return nccl_result(failure);
}

void enqueue(Launch& launch) {
  Stream& first = *launch.streams.front();
  Event event;
  for (size_t i = 1; i < launch.streams.size(); ++i) {
    launch.streams[i]->record(event);
    first.wait(event);
  }
  for (auto& [operation, number] : launch.operations) {
    if (first.capture()) operation.held = launch.comm->graphs;
    launch.comm->links->enqueue(first, std::move(operation), number);
  }
  for (size_t i = 1; i < launch.streams.size(); ++i) {
    first.record(event);
    launch.streams[i]->wait(event);
  }
}

ncclResult_t launch_all(std::vector<Launch> launches) {
  // All peers of all communicators hear of it before this thread waits for any of them.
  for (const Launch& launch : launches) launch.comm->links->mesh->announce("connect", launch.new_peers);
  for (const Launch& launch : launches) {
    if (const ncclResult_t wrong = connect(launch)) return wrong;
  }
  for (Launch& launch : launches) enqueue(launch);
  return ncclSuccess;
}

ncclResult_t run_group(Group ended) {
  if (ended.error) return nccl_refuse(ended.error, ended.text);
  if (!ended.inits.empty() && !ended.work.empty()) {
    return nccl_refuse(ncclInvalidUsage, "communicators are made and used in one group");
  }
  const auto blocks = [](const auto& one) { return one.first->blocking; };
  if (!std::ranges::all_of(ended.work, blocks) && std::ranges::any_of(ended.work, blocks)) {
    return nccl_refuse(ncclInvalidArgument,
                       "Blocking and nonblocking communicators are not allowed in the same group.");
  }
  std::vector<ncclResult_t> results(ended.inits.size());
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < results.size(); ++i) {
      threads.emplace_back([&, i] { results[i] = nccl_do(ended.inits[i].first, ended.inits[i].second); });
    }
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i]) return nccl_refuse(results[i], ended.inits[i].first->text);
  }
  std::vector<Launch> launches(ended.work.size());
  for (size_t i = 0; i < launches.size(); ++i) {
    if (const ncclResult_t wrong = prepare(ended.work[i].first, ended.work[i].second, launches[i])) return wrong;
  }
  if (launches.empty() || launches.front().comm->blocking) return launch_all(std::move(launches));
  for (Launch& launch : launches) {
    auto alone = std::make_shared<std::vector<Launch>>();
    const auto comm = launch.comm;
    alone->push_back(std::move(launch));
    nccl_do(comm, [alone] { return launch_all(std::move(*alone)); });
  }
  return ncclInProgress;
}

}  // namespace

ncclResult_t nccl_call(const char* name, ncclComm_t handle, ncclDataType_t type, cudaStream_t stream, bool collective,
                       const std::function<ncclResult_t(const NcclComm&, NcclEnqueued&)>& fill) {
  const auto checked = [&]() -> ncclResult_t {
    std::shared_ptr<NcclComm> comm;
    if (const ncclResult_t wrong = nccl_find_here(handle, comm)) return wrong;
    if (comm->closing) return nccl_refuse(ncclInvalidUsage, "the communicator is finalised or revoked");
    if (type < 0 || type >= ncclNumTypes) {
      return nccl_refuse(ncclInvalidArgument, std::string(name) + " : invalid type " + std::to_string(type));
    }
    NcclEnqueued enqueued{driver_stream(stream, comm->device), name, collective, {}, {}, {}};
    if (!enqueued.stream || enqueued.stream->device != comm->device) {
      return nccl_refuse(ncclInvalidUsage, "no such stream on the communicator's device");
    }
    if (const ncclResult_t wrong = fill(*comm, enqueued)) return wrong;
    uint64_t bytes = 0;
    std::vector<int> peers;
    for (const auto* parts : {&enqueued.sends, &enqueued.recvs}) {
      for (const Part& part : *parts) {
        bytes += part.header.bytes;
        peers.push_back(part.peer);
      }
    }
    log(name, comm->rank, stream, bytes, type, peers);
    auto found = std::ranges::find_if(group.work, [&](const auto& other) { return other.first == comm; });
    if (found == group.work.end()) found = group.work.insert(found, {comm, {}});
    found->second.push_back(std::move(enqueued));
    return ncclSuccess;
  };
  if (group.depth > 0) return remember(checked());
  ++group.depth;
  const ncclResult_t result = remember(checked());
  const ncclResult_t ended = ncclGroupEnd();
  return result ? result : ended;
}

bool nccl_in_group(const std::shared_ptr<NcclComm>& comm, NcclJob job) {
  if (group.depth == 0) return false;
  group.inits.emplace_back(comm, std::move(job));
  return true;
}

}  // namespace fake

using namespace fake;

ncclResult_t ncclGroupStart() {
  log("ncclGroupStart");
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  log("ncclGroupEnd");
  if (group.depth == 0) return nccl_refuse(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
  if (--group.depth > 0) return ncclSuccess;
  return run_group(std::exchange(group, {}));
}
