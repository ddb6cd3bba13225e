// One rank on a GPU through liba2a alone, for machines on which the Python package cannot be built. Exits with 0 when
// every exchange was right to the byte.
#define A2A_TEST_NVIDIA
#include "device_ranks.h"

using namespace device_ranks;

TEST("one rank: elements of every size, allgather, its own stream, the default one, and a graph") {
  ranks::as_threads(1, on_device([](Communicator& comm) {
                      int round = 1;  // in which a rank sends itself something
                      for (const size_t unit : {1, 2, 3, 4, 8, 16, 24}) exchange(comm, unit, round++ % 3 + 1);

                      const Uneven x(comm, 4, 3);
                      vendor::Memory send(x.sent.size()), recv(x.wanted.size());
                      send.upload(x.sent);
                      start(comm, Plan::allgather(0, 1, x.sent.size()), send, recv, call_of(comm, Op::allgather));
                      CHECK(recv.download() == x.sent);

                      Call call = call_of(comm, Op::alltoallv);
                      call.asynchronous = true;
                      const auto work = start(comm, x.plan(), send, recv, call);
                      work->order_before({nvidia::stream});
                      CHECK(recv.download() == x.wanted);
                      call.asynchronous = false, call.stream = {};
                      start(comm, x.plan(), send, recv, call)->wait();
                      CHECK(recv.download() == x.wanted);

                      call.stream = {nvidia::stream}, call.plan = comm.next_plan();
                      start(comm, x.plan(), send, recv, call)->wait();
                      const nvidia::Graph graph([&] { start(comm, x.plan(), send, recv, call); });
                      for (int i = 0; i < 3; ++i) {
                        recv.upload(std::vector<std::byte>(x.wanted.size()));
                        graph.launch();
                        CHECK(recv.download() == x.wanted);
                      }
                      comm.close();
                    }));
}
