#include "transport/hosts/stage_run.h"

#include <algorithm>
#include <map>
#include <utility>

#include "transport/hosts/runs.h"

namespace a2a::hosts {
namespace {

// Returns the bytes that fill the caches besides the `here` bytes that each of `neighbours` ranks exchanges on its
// host. Bytes to and from other hosts are in the kernel's memory, too. Other hosts on the same machine fill its caches
// in the same way.
size_t besides(size_t here, size_t elsewhere, size_t neighbours, size_t on_machine) {
  return (here + 2 * elsewhere) * on_machine / neighbours - here;
}

// Makes the runs of the stages of one batch.
class Maker {
 public:
  Maker(const Batch& batch, Rank rank, const HostMap& map, Scratch& scratch)
      : batch_(batch), rank_(rank), map_(map), scratch_(scratch) {}

  // The last exchange on this host is the one that ends the operation there.
  std::vector<StageRun> runs() {
    take_memory();
    std::vector<StageRun> runs;
    runs.push_back(run(batch_));
    for (const Moves& moves : batch_.later) runs.push_back(run(moves));
    const auto last = std::find_if(runs.rbegin(), runs.rend(), [](const StageRun& run) { return run.on_host; });
    for (StageRun& run : runs) run.here.last = &run == &*last;
    return runs;
  }

 private:
  // All folds use the same memory, one after the other.
  void take_memory() {
    size_t most = bytes_of_parts(batch_);
    for (const Moves& moves : batch_.later) most = std::max(most, bytes_of_parts(moves));
    if (most > 0) memory_ = scratch_.take(most);
  }

  bool runs_fold(const Moves& moves) const {
    return moves.folds && batch_.way == Way::exchange && batch_.refusal.empty();
  }
  // Whether its outputs are folded by different ranks: receives of one label are one output.
  bool brings_outputs(const Moves& moves) const { return runs_fold(moves) && batch_.signature.op == Op::reshard; }
  bool brings_parts(const Moves& moves) const {
    return runs_fold(moves) && moves.reach != Reach::host && !moves.parts.empty();
  }
  size_t bytes_of_parts(const Moves& moves) const {
    if (brings_outputs(moves)) return bytes_of(moves.recvs);
    if (!brings_parts(moves)) return 0;
    size_t ranks = 0;
    for (const FoldPart& part : moves.parts) ranks += part.from.size();
    return ranks * bytes_of(output_of(moves));
  }

  StageRun run(const Moves& moves) {
    StageRun run;
    run.on_host = moves.reach != Reach::network;
    run.on_network = moves.reach != Reach::host;
    const bool folds = runs_fold(moves) && !brings_outputs(moves);
    if (run.on_host) {
      run.here = terms(folds);
      run.here.stage = on_host_++;
      run.here.sends = runs_here(moves.sends, map_, rank_);
      run.here.recvs = runs_here(moves.recvs, map_, rank_);
      note_elsewhere(run.here, moves);
    }
    if (run.on_network) {
      const bool is_first = &moves == &static_cast<const Moves&>(batch_);
      const bool has_fold =
          batch_.way == Way::exchange && batch_.refusal.empty() && batch_.signature.fold != Fold::none;
      run.as_batch = is_first && !has_fold;
      if (!run.as_batch) {
        run.between = terms(folds);
        run.between.sends = moves.sends;
        run.between.recvs = moves.recvs;
      }
      run.between.stage = on_network_++;
    }
    if (brings_parts(moves)) bring_parts(run, moves);
    if (brings_outputs(moves)) bring_outputs(run, moves);
    return run;
  }

  Batch terms(bool folds) const {
    Batch batch;
    static_cast<Terms&>(batch) = batch_;
    if (!folds && batch_.way == Way::exchange && batch_.refusal.empty()) batch.signature.fold = Fold::none;
    batch.folds = folds;
    batch.strides = batch_.strides;
    batch.copy = batch_.copy;
    batch.refusal = batch_.refusal;
    batch.asynchronous = false;  // whoever runs this operation runs the exchange, too
    return batch;
  }

  void note_elsewhere(Batch& here, const Moves& moves) const {
    const size_t sent = bytes_of(here.sends), sent_far = bytes_of(moves.sends) - sent;
    const size_t received = bytes_of(here.recvs), received_far = bytes_of(moves.recvs) - received;
    const size_t neighbours = map_.ranks_of(map_.host_of(rank_)).size(), on_machine = map_.on_machine_of(rank_);
    if (moves.reach == Reach::host || batch_.folds) return;
    here.sent_elsewhere = besides(sent, sent_far, neighbours, on_machine);
    here.received_elsewhere = besides(received, received_far, neighbours, on_machine);
    here.own_last = sent_far + received_far > 0;
  }

  // Has the parts of a fold arrive in memory of their own, and folds them from there.
  void bring_parts(StageRun& run, const Moves& moves) {
    const auto output = output_of(moves);
    const size_t bytes = bytes_of(output);
    run.memory = memory_;
    std::byte* next = memory_.get();
    run.between.recvs.clear();
    std::vector<HostFold::From> all;
    for (const FoldPart& part : moves.parts) {
      HostFold::From& from = all.emplace_back(HostFold::From{part.times, {}});
      if (map_.share_host(part.from[0], rank_)) {
        // The ranks of this host have folded their part in an earlier stage, or they fold it now.
        from.parts = {run.on_host ? std::exchange(next, next + bytes) : runs_with(moves.sends, rank_)[0].data};
        for (Run& to : run.here.recvs) to = {to.peer, from.parts[0], bytes};
        continue;
      }
      size_t at = bytes;  // in the latest part; the next sender begins another one
      for (const Rank peer : part.from) {
        const size_t sent = bytes_of(runs_with(moves.recvs, peer));
        if (at == bytes) from.parts.push_back(std::exchange(next, next + bytes)), at = 0;
        run.between.recvs.push_back({peer, from.parts.back() + at, sent});
        at += sent;
      }
    }
    std::ranges::stable_sort(run.between.recvs, {}, &Run::peer);
    run.folds.emplace_back(batch_.signature, output, std::move(all));
  }

  // Has what all ranks send for each output arrive in memory of its own, and folds it from there in rank order.
  void bring_outputs(StageRun& run, const Moves& moves) {
    struct Output {
      Run run;
      std::vector<HostFold::From> ranks;
    };
    std::map<uint32_t, Output> outputs;
    run.memory = memory_;
    std::byte* next = memory_.get();
    run.here.recvs.clear();
    run.between.recvs.clear();
    for (const Run& recv : moves.recvs) {
      std::byte* const memory = std::exchange(next, next + recv.bytes);
      Output& one = outputs[recv.shape];
      one.run = recv;
      one.ranks.push_back({1, {memory}});
      run.between.recvs.push_back({recv.peer, memory, recv.bytes});
    }
    run.here.recvs = runs_here(run.between.recvs, map_, rank_);
    for (auto& [label, one] : outputs) {
      run.folds.emplace_back(batch_.signature, std::span(&one.run, 1), std::move(one.ranks));
    }
  }

  // The output is what the rank that sends all of it sends: each one, or this one.
  std::span<const Run> output_of(const Moves& moves) const {
    const auto own = runs_with(moves.recvs, rank_);
    return own.empty() ? runs_with(moves.recvs, moves.recvs.front().peer) : own;
  }

  const Batch& batch_;
  const Rank rank_;
  const HostMap& map_;
  Scratch& scratch_;
  std::shared_ptr<std::byte[]> memory_;
  uint8_t on_host_ = 0, on_network_ = 0;
};

}  // namespace

std::vector<StageRun> stage_runs(const Batch& batch, Rank rank, const HostMap& map, Scratch& scratch) {
  return Maker(batch, rank, map, scratch).runs();
}

}  // namespace a2a::hosts
