// What the file of A2A_ENDED says about the ranks of a job. test_ended_ranks.py waits for ranks that have ended.
#include "bootstrap/ended_ranks.h"

#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

namespace {

// A file that A2A_ENDED names while this object lives.
class Ended {
 public:
  explicit Ended(const std::string& text) : file_(::memfd_create("ended", MFD_CLOEXEC)) {
    CHECK_EQ(::write(file_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
    ::setenv("A2A_ENDED", ("/proc/self/fd/" + std::to_string(file_)).c_str(), 1);
  }
  ~Ended() {
    ::unsetenv("A2A_ENDED");
    ::close(file_);
  }
  Ended(const Ended&) = delete;
  Ended& operator=(const Ended&) = delete;

 private:
  const int file_;
};

// Returns what the ranks of a job of 3 ranks are told by a file with this text; "" for nothing.
std::string told(const std::string& text, const std::string& job = "mine") {
  const Ended file(text);
  return a2a::ended_rank(job, 3).value_or("");
}

TEST("the first rank that has ended is named, in its own words where it has some") {
  CHECK_EQ(told("3 mine\n"), "");
  CHECK_EQ(told("3 mine\n2 exited with code 0\n"), "rank 2 exited with code 0");
  CHECK_EQ(told("3 mine\n2 raised KeyError\n2 exited with code 1\n0 exited with code 0\n"), "rank 2 raised KeyError");
  CHECK_EQ(told("3 mine\n1 exited with code 0\n", "mine#4"), "rank 1 exited with code 0");
}

TEST("the line for the launcher, which may start ranks again, is about no rank") {
  const std::string head = "3 mine\nlauncher: 7\n";
  CHECK_EQ(told(head), "");
  CHECK_EQ(told("3 mine\nlauncher: "), "");
  CHECK_EQ(told(head + "0 exited with code 0\n2 raised KeyError\n"), "rank 0 exited with code 0");
  {
    const Ended file(head);
    a2a::require_all_running("mine", 3);
  }
  const Ended file(head + "2 raised KeyError\n");
  CHECK_THROWS(a2a::Code::peer_lost, "job 'mine': rank 2 raised KeyError before all ranks had joined",
               a2a::require_all_running("mine", 3));
}

TEST("a file about another job says nothing") {
  CHECK_EQ(told("2 mine\n1 exited with code 0\n"), "");
  CHECK_EQ(told("3 other\n1 exited with code 0\n"), "");
  CHECK_EQ(told("3 mine0\n1 exited with code 0\n"), "");
  CHECK_EQ(told("3 mine0\n1 exited with code 0\n", "mine#0"), "");
  CHECK_EQ(told(""), "");
  CHECK(!a2a::ended_rank("mine", 3));
}

}  // namespace
