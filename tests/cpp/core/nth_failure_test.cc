// The n-th system call that allocates a resource, or the n-th allocation of memory, fails on one of two ranks, which
// meet, exchange, split and close. For every n both ranks end in time, with valid data or an error.
//
// A few of the n by default; `--every=1` tries each.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <new>

#include "ranks.h"
#include "tcp.h"

namespace {

enum class What { nothing, call, memory };
What failing = What::nothing;
long left = 0;   // counted calls until one fails
long count = 0;  // so far
int reason = 0;  // errno

bool fails(What what) {
  if (failing != what) return false;
  ++count;
  return left > 0 && --left == 0;
}

template <class Result, class Function, class... Arguments>
Result call(const char* name, Function*, Result failure, Arguments... arguments) {
  if (fails(What::call)) {
    errno = reason;
    return failure;
  }
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name))(arguments...);
}

}  // namespace

extern "C" {
void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  return call<void*>("mmap", &mmap, MAP_FAILED, at, bytes, protection, flags, fd, offset);
}
int mprotect(void* at, size_t bytes, int protection) noexcept {
  return call<int>("mprotect", &mprotect, -1, at, bytes, protection);
}
int madvise(void* at, size_t bytes, int advice) noexcept {
  return call<int>("madvise", &madvise, -1, at, bytes, advice);
}
int memfd_create(const char* name, unsigned flags) noexcept {
  return call<int>("memfd_create", &memfd_create, -1, name, flags);
}
int ftruncate(int fd, off_t bytes) noexcept { return call<int>("ftruncate", &ftruncate, -1, fd, bytes); }
int socket(int domain, int type, int protocol) noexcept {
  return call<int>("socket", &socket, -1, domain, type, protocol);
}
int bind(int fd, const sockaddr* address, socklen_t length) noexcept {
  return call<int>("bind", &bind, -1, fd, address, length);
}
int listen(int fd, int backlog) noexcept { return call<int>("listen", &listen, -1, fd, backlog); }
int connect(int fd, const sockaddr* address, socklen_t length) {
  return call<int>("connect", &connect, -1, fd, address, length);
}
int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  return call<int>("accept4", &accept4, -1, fd, address, length, flags);
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return call<ssize_t>("sendmsg", &sendmsg, -1, fd, message, flags);
}
ssize_t recvmsg(int fd, msghdr* message, int flags) {
  return call<ssize_t>("recvmsg", &recvmsg, -1, fd, message, flags);
}
int epoll_create1(int flags) noexcept { return call<int>("epoll_create1", &epoll_create1, -1, flags); }
int epoll_ctl(int poller, int operation, int fd, epoll_event* event) noexcept {
  return call<int>("epoll_ctl", &epoll_ctl, -1, poller, operation, fd, event);
}
}

void* operator new(size_t bytes) {
  void* const memory = fails(What::memory) ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

using namespace a2a;

constexpr double kTimeout = 3;
constexpr int kWell = 10, kRaised = 11;  // exit statuses

bool exchanges_right(Communicator& comm, size_t n) {
  const auto mark = [n](int from, int to) { return static_cast<uint8_t>(1 + 16 * from + to + static_cast<int>(n)); };
  std::vector<uint8_t> send, recv(2 * n);
  for (int to = 0; to < 2; ++to) send.insert(send.end(), n, mark(comm.rank(), to));
  alltoall<uint8_t>(comm, send, recv);
  for (size_t i = 0; i < recv.size(); ++i) {
    if (recv[i] != mark(static_cast<int>(i / n), comm.rank())) return false;
  }
  return true;
}

using Meet = std::function<std::shared_ptr<Bootstrap>(int rank)>;

// Runs one rank. Returns false if an exchange that succeeded delivered wrong bytes.
bool live(int rank, const Meet& meet) {
  const auto bootstrap = meet(rank);
  const auto comm = Communicator::create(rank, 2, *bootstrap, {kTimeout});
  for (const size_t n : {size_t{1}, size_t{5000}, size_t{300'000}}) {
    if (!exchanges_right(*comm, n)) return false;
  }
  const auto shared = Communicator::allocate_shared(size_t{2} << 20);
  shared.get()[0] = std::byte{1};
  const auto part = comm->split(0, rank);
  if (!exchanges_right(*part, 100)) return false;
  part->close();
  comm->close();
  return true;
}

int rank_main(int rank, const Meet& meet, What what, long n, int counted) {
  ::alarm(20);
  if (rank == 1) failing = what, left = n, reason = ENOMEM;
  int status = 0;
  try {
    status = live(rank, meet) ? kWell : 1;
  } catch (const Error&) {
    status = kRaised;
  } catch (const std::bad_alloc&) {
    status = kRaised;
  }
  failing = What::nothing;
  if (counted >= 0) (void)!::write(counted, &count, sizeof(count));
  return status;
}

struct Outcome {
  int status[2];
  long counted = 0;  // calls or allocations of rank 1
};

Outcome run(const Meet& meet, What what, long n) {
  int pipe[2];
  CHECK_EQ(::pipe(pipe), 0);
  pid_t pids[2];
  for (int rank = 0; rank < 2; ++rank) {
    pids[rank] = ::fork();
    if (pids[rank] == 0) ::_exit(rank_main(rank, meet, what, n, rank == 1 ? pipe[1] : -1));
  }
  Outcome outcome;
  for (int rank = 0; rank < 2; ++rank) {
    int status = 0;
    ::waitpid(pids[rank], &status, 0);
    outcome.status[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  ::close(pipe[1]);
  (void)!::read(pipe[0], &outcome.counted, sizeof(outcome.counted));
  ::close(pipe[0]);
  return outcome;
}

void try_all(const char* place, const std::function<Meet()>& new_place, What what) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return;  // sanitizers have an allocator of their own
#endif
  const Outcome whole = run(new_place(), what, 0);
  CHECK_EQ(whole.status[0], kWell);
  CHECK_EQ(whole.status[1], kWell);
  check::Random random(check::seed());
  const long every = std::stol(check::option("every", std::to_string(std::max(1L, whole.counted / 20))));
  int well = 0, raised = 0;
  for (long n = 1 + (every > 1 ? random.in(0L, every - 1) : 0); n <= whole.counted; n += every) {
    const check::Note note("n", static_cast<uint64_t>(n));
    const Outcome outcome = run(new_place(), what, n);
    for (const int status : outcome.status) {
      CHECK(status == kWell || status == kRaised);
      ++(status == kWell ? well : raised);
      if (status != kWell && status != kRaised) std::cerr << "  ended with " << status << '\n';
    }
  }
  std::cout << "  " << place << ": " << whole.counted << " of them; " << well << " ranks ended well, " << raised
            << " raised" << std::endl;
}

Meet over_unix() {
  const std::string job = ranks::new_job();
  return [job](int rank) { return unix_bootstrap(rank, 2, job, Deadline::after_seconds(kTimeout)); };
}

Meet over_tcp() {
  const std::string address = free_address();
  return [address](int rank) {
    ::setenv("A2A_HOSTS", "a,b", 1);
    return tcp_bootstrap(rank, 2, "job", address, "0123456789abcdef", Deadline::after_seconds(kTimeout));
  };
}

TEST("the n-th system call fails, on one host") { try_all("system calls", over_unix, What::call); }
TEST("the n-th allocation fails, on one host") { try_all("allocations", over_unix, What::memory); }
TEST("the n-th system call fails, over TCP") { try_all("system calls", over_tcp, What::call); }
TEST("the n-th allocation fails, over TCP") { try_all("allocations", over_tcp, What::memory); }

}  // namespace
