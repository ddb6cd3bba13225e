// The counts of A2A_METRICS.
#include "core/metrics.h"

#include "a2a/communicator.h"
#include "check.h"
#include "environment.h"

namespace {

using namespace a2a;

Batch batch_of(uint64_t number, bool asynchronous = false) {
  static std::byte memory[64];
  Batch batch;
  batch.signature = {Op::alltoallv, Memory::host, DType{}, number, 0};
  batch.asynchronous = asynchronous;
  batch.sends = {{0, memory, 8}, {1, memory, 12}, {1, memory, 4}};
  batch.recvs = {{1, memory, 20}};
  return batch;
}

bool says(const std::string& line) { return metrics_text().find("\n" + line + "\n") != std::string::npos; }

TEST("nothing is counted unless it is asked for") {
  const check::Variable none("A2A_METRICS", nullptr);
  CHECK(Metrics::open(0, 2, "world") == nullptr);
  const check::Variable empty("A2A_METRICS", "");
  CHECK(Metrics::open(0, 2, "world") == nullptr);
}

TEST("operations, bytes, failures and waits add up, also in a later communicator of the same name") {
  const check::Variable wanted("A2A_METRICS", "9400");
  auto metrics = Metrics::open(1, 2, "world");
  if (!CHECK(metrics != nullptr)) return;
  metrics->begin(batch_of(1));
  metrics->end(1, false);
  metrics->begin(batch_of(2, true));
  metrics->end(2, true);
  metrics->end(2, true);   // it has ended already
  metrics->end(99, true);  // it was never begun
  metrics = Metrics::open(1, 2, "world");
  metrics->begin(batch_of(1));
  Batch refused;
  refused.signature = {Op::barrier, Memory::host, DType{}, 2, 0};
  refused.refusal = "no";
  metrics->begin(refused);
  CHECK(says("a2a_operation_failures_total{communicator=\"world\",rank=\"1\",operation=\"barrier\"} 1"));
  const Rank ranks[] = {0, 7};
  metrics->waited(ranks, 1'500'000'000);
  CHECK(says("a2a_operations_total{communicator=\"world\",rank=\"1\",operation=\"alltoallv\"} 3"));
  CHECK(says("a2a_operation_failures_total{communicator=\"world\",rank=\"1\",operation=\"alltoallv\"} 1"));
  CHECK(says("a2a_sent_bytes_total{communicator=\"world\",rank=\"1\",peer=\"0\"} 24"));
  CHECK(says("a2a_sent_bytes_total{communicator=\"world\",rank=\"1\",peer=\"1\"} 48"));
  CHECK(says("a2a_received_bytes_total{communicator=\"world\",rank=\"1\",peer=\"1\"} 60"));
  CHECK(says("a2a_wait_seconds_total{communicator=\"world\",rank=\"1\",peer=\"0\"} 1.500000000"));
}

TEST("messages") {
  const check::Variable wanted("A2A_METRICS", "9400");
  const auto metrics = Metrics::open(0, 2, "messages");
  Message message;
  message.sends = true, message.bytes = 5;
  metrics->add(message, 1, 2'000'000'000, false);
  metrics->add(message, 1, 0, true);
  metrics->add(message, -1, 0, false);
  CHECK(says("a2a_operations_total{communicator=\"messages\",rank=\"0\",operation=\"send\"} 3"));
  CHECK(says("a2a_operation_seconds_total{communicator=\"messages\",rank=\"0\",operation=\"send\"} 2.000000000"));
  CHECK(says("a2a_sent_bytes_total{communicator=\"messages\",rank=\"0\",peer=\"1\"} 5"));
}

TEST("communicators beyond a number are not counted") {
  const check::Variable wanted("A2A_METRICS", "9400");
  bool refused = false;
  for (int i = 0; i < 100; ++i) refused |= Metrics::open(0, 1, "split #" + std::to_string(i)) == nullptr;
  CHECK(refused);
  CHECK(Metrics::open(0, 2, "messages") != nullptr);
}

}  // namespace
