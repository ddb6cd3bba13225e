// Ranks make an HCCL communicator, or one of them fails to.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "device_ranks.h"

namespace {

using namespace device_ranks;
using a2a::Memory;
using std::chrono::milliseconds;

void connect(Communicator& comm, double timeout = 30) {
  comm.connect(Memory::npu, comm.rank(), Deadline::after_seconds(timeout));
}

std::string in_directory(const char* variable, const std::string& directory) {
  const std::filesystem::path path = std::getenv(variable);
  return (path.parent_path() / directory / path.filename()).string();
}

Environment::List variant(const std::string& directory) {
  return {{"A2A_HCCL_LIBRARY", in_directory("A2A_HCCL_LIBRARY", directory)},
          {"A2A_ASCENDCL_LIBRARY", in_directory("A2A_ASCENDCL_LIBRARY", directory)}};
}

// A file that exists as long as this object.
class File {
 public:
  explicit File(const std::string& text) {
    static std::atomic<int> count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("a2a-table-" + std::to_string(getpid()) + "-" + std::to_string(++count) + ".json");
    std::ofstream(path_) << text;
  }
  ~File() { std::filesystem::remove(path_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::string rank_table(int ranks) {
  std::ostringstream table;
  table << R"({"status": "completed", "version": "1.0", "server_count": "1", "server_list": [)"
        << R"({"server_id": "node", "device": [)";
  for (int rank = 0; rank < ranks; ++rank) {
    table << (rank > 0 ? ", " : "") << R"({"device_id": ")" << rank << R"(", "device_ip": "192.168.1.)" << rank + 1
          << R"(", "rank_id": ")" << rank << "\"}";
  }
  table << "]}]}";
  return table.str();
}

// The HCCL calls that make an HcclComm without this library.
struct Hccl {
  Hccl() : library(dlopen(std::getenv("A2A_HCCL_LIBRARY"), RTLD_NOW)) {
    find("HcclGetRootInfo", &get_root_info), find("HcclCommInitRootInfo", &comm_init_root_info);
    find("HcclCommDestroy", &comm_destroy);
  }
  template <class Function>
  void find(const char* name, Function** function) {
    *function = reinterpret_cast<Function*>(dlsym(library, name));
    CHECK(*function);
  }
  // Makes an HcclComm for all ranks of the communicator.
  void* new_communicator(Communicator& comm) const {
    std::string root(4108, '\0');
    if (comm.rank() == 0) CHECK_EQ(get_root_info(root.data()), 0);
    root = comm.allgather_bytes(root, Op::allgather)[0];
    void* made = nullptr;
    CHECK_EQ(
        comm_init_root_info(static_cast<uint32_t>(comm.size()), root.data(), static_cast<uint32_t>(comm.rank()), &made),
        0);
    return made;
  }

  void* library;
  int (*get_root_info)(void*);
  int (*comm_init_root_info)(uint32_t, const void*, uint32_t, void**);
  int (*comm_destroy)(void*);
};

}  // namespace

TEST("connecting once is enough, with one device for each rank") {
  everywhere(3, [](Communicator& comm) {
    connect(comm);
    const uint64_t number = comm.last_number();
    connect(comm);
    CHECK_EQ(comm.last_number(), number);
    CHECK_THROWS(Code::invalid_argument,
                 "connect: device is npu:7, but this communicator uses npu:", comm.connect(Memory::npu, 7));
    exchange(comm, 4, 0);
    comm.close();
    CHECK_THROWS(Code::aborted, "has closed this communicator", connect(comm));
  });
}

TEST("a device that does not exist is its rank's own mistake, and a disagreement to the others") {
  everywhere(3, [](Communicator& comm) {
    if (comm.rank() == 1) {
      CHECK_THROWS(Code::invalid_argument, "device npu:99 does not exist, this process has 8",
                   comm.connect(Memory::npu, 99));
    } else {
      CHECK_THROWS(Code::mismatch, "connecting the ranks for npu memory: rank 1: device npu:99 does not exist",
                   connect(comm));
    }
    exchange(comm, 4, 0);
    comm.close();
  });
}

TEST("a rank without the library is named by all, and host memory still serves") {
  as_processes(3, [](Communicator& comm) {
    if (comm.rank() == 1) setenv("A2A_HCCL_LIBRARY", "/nonexistent/libhccl.so", 1);
    const auto error = failure_of([&] { exchange(comm, 4, 0); });
    CHECK(
        says(error, Code::unsupported, {"cannot find HCCL", "/nonexistent/libhccl.so", "A2A_HCCL_LIBRARY names this"}));
    if (comm.rank() != 1) CHECK(says(error, Code::unsupported, {"rank 1: "}));
    comm.barrier();
    comm.close();
  });
}

TEST("a version without HcclBatchSendRecv: what needs it is refused by name, the rest works") {
  as_processes(
      2,
      [](Communicator& comm) {
        exchange(comm, 4, 0);
        const Swap swap(comm);
        const std::vector<int64_t> ones(4, 1);
        CHECK_THROWS(Code::unsupported, "lacks HcclBatchSendRecv; another version of it is needed",
                     start(comm, Plan::global_scatter(comm.rank(), 2, 4, ones, ones), swap.send, swap.recv,
                           call_of(comm, Op::global_scatter)));
        exchange(comm, 4, 1);
        comm.close();
      },
      variant("old"));
}

TEST("communicators in a library of their own") {
  as_processes(
      2,
      [](Communicator& comm) {
        for (int i = 0; i < 3; ++i) exchange(comm, 4, i);
        comm.close();
      },
      variant("split"));
}

TEST("a communicator of the caller's is used, and stays the caller's") {
  everywhere(2, [](Communicator& comm) {
    const Hccl hccl;
    void* const made = hccl.new_communicator(comm);
    const auto inner = comm.split(0, 0);
    inner->adopt(Memory::npu, made);
    inner->adopt(Memory::npu, made);  // a second call is allowed
    for (int i = 0; i < 3; ++i) exchange(*inner, 4, i);
    CHECK_THROWS(Code::invalid_argument, "adopt: wants a communicator for device memory, before the first operation",
                 inner->adopt(Memory::npu, &comm));
    inner->close();
    const auto next = comm.split(0, 0);
    next->adopt(Memory::npu, made);
    exchange(*next, 4, 0);
    next->close();
    CHECK_EQ(hccl.comm_destroy(made), 0);
    comm.close();
  });
}

TEST("a communicator of another rank or size is refused on all ranks") {
  everywhere(2, [](Communicator& comm) {
    const Hccl hccl;
    void* const made = hccl.new_communicator(comm);
    const auto turned = comm.split(0, -comm.rank());
    turned->adopt(Memory::npu, made);
    CHECK_THROWS(Code::invalid_argument,
                 comm.rank() == 0 ? "is that of rank 0 of 2, this is rank 1 of 2"
                                  : "is that of rank 1 of 2, this is rank 0 of 2",
                 turned->connect(Memory::npu, comm.rank()));
    const auto alone = comm.split(comm.rank(), 0);
    alone->adopt(Memory::npu, made);
    CHECK_THROWS(Code::invalid_argument, "of 2, this is rank 0 of 1", alone->connect(Memory::npu, comm.rank()));
    // Only one rank does it, so the others learn of it while they wait inside HCCL or before.
    const auto mixed = comm.split(0, 0);
    if (comm.rank() == 0) mixed->adopt(Memory::npu, made);
    CHECK_THROWS(Code::mismatch, "rank 0 has HCCL, check=first, an adopted communicator, rank 1 has HCCL, check=first",
                 mixed->connect(Memory::npu, comm.rank()));
    CHECK_EQ(hccl.comm_destroy(made), 0);
    comm.close();
  });
}

TEST("a rank table instead of root information") {
  const File table(rank_table(3));
  everywhere(3, [&](Communicator& comm) {
    comm.use_rank_table(table.path());
    for (int i = 0; i < 3; ++i) exchange(comm, 4, i);
    comm.close();
  });
}

TEST("a rank table that is wrong for one rank is named on all ranks, at once, and can be put right") {
  const File table(rank_table(3)), wrong(rank_table(2)), broken("{");
  everywhere(3, [&](Communicator& comm) {
    for (const std::string& bad : {wrong.path(), broken.path(), std::string("/nonexistent/table.json")}) {
      comm.use_rank_table(comm.rank() == 2 ? bad : table.path());
      const auto error = failure_of([&] { connect(comm); });
      CHECK(says(error, comm.rank() == 2 ? Code::backend : Code::mismatch,
                 {"connecting the ranks for npu memory: ", "HcclCommInitClusterInfo failed with error 1", bad}));
      if (comm.rank() != 2) CHECK(says(error, Code::mismatch, {"rank 2 does not take part"}));
      CHECK_EQ(comm.broken(), false);
    }
    const File own(rank_table(3));
    comm.use_rank_table(comm.allgather_bytes(own.path(), Op::allgather)[0]);
    exchange(comm, 4, 0);
    comm.close();
  });
}

TEST("a rank that does not come to HCCL's meeting: the deadline ends it for all") {
  everywhere(3, [](Communicator& comm) {
    const auto begin = std::chrono::steady_clock::now();
    if (comm.rank() == 1) {
      pretend_to_connect(comm, "HCCL, check=first");
      CHECK_THROWS(Code::timeout, "timed out", comm.barrier(Deadline::after_seconds(30)));
    } else {
      const auto error = failure_of([&] { connect(comm, 1); });
      CHECK(says(error, Code::timeout, {"connecting the ranks for npu memory: ", "timed out; peers: rank "}));
    }
    CHECK(seconds_since(begin) < 3);
    CHECK(comm.broken());
  });
}

TEST("a rank that is killed before or while the ranks connect is a lost peer at once") {
  for (const bool joining : {false, true}) {
    const check::Note note("joining", joining);
    with_a_victim(3, 1, [joining](Communicator& comm) {
      if (comm.rank() == 1) {
        if (joining) pretend_to_connect(comm, "HCCL, check=first");
        std::this_thread::sleep_for(milliseconds(200));  // now the others wait for it
        raise(SIGKILL);
      }
      const auto begin = std::chrono::steady_clock::now();
      const auto error = failure_of([&] { connect(comm); });
      CHECK(says(error, Code::peer_lost, {"lost rank 1"}));
      CHECK(seconds_since(begin) < 1.2);  // including the sleep
      CHECK(comm.broken());
      const auto smaller = comm.shrink();
      Call call = call_of(*smaller, a2a::Op::allgather);
      call.device = comm.rank();
      const Swap swap(*smaller);
      start(*smaller, Plan::allgather(smaller->rank(), 2, 4), swap.send, swap.recv, call)->wait();
      smaller->close();
    });
  }
}

TEST("a signal ends the wait in HCCL's meeting") {
  everywhere(2, [](Communicator& comm) {
    if (comm.rank() == 1) {
      pretend_to_connect(comm, "HCCL, check=first");
      CHECK_THROWS(Code::aborted, "rank 0: interrupted by a signal", comm.barrier());
      return;
    }
    static thread_local int looks = 0;
    looks = 0;
    const a2a::SignalWatch watch([] { return ++looks > 10; });
    try {
      connect(comm);
      CHECK(false);
    } catch (const a2a::Interrupted&) {
      CHECK(comm.broken());
    }
  });
}
