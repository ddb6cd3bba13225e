// The helpers of the files of A2A_DUMP and A2A_TRACE.
#include "core/record_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "check.h"
#include "environment.h"

namespace {

using namespace a2a;

TEST("a file's name has the rank, the size, the host, the process and the count") {
  const std::string name = record_name(3, 8, 2, "a2a");
  CHECK_EQ(name, "rank3-of-8." + host_name() + "." + std::to_string(::getpid()) + ".2.a2a");
}

TEST("a new file replaces a link of its name, and is for its owner alone") {
  const check::Folder folder;
  const auto target = folder.path() / "target", link = folder.path() / "link";
  std::ofstream(target) << "kept";
  std::filesystem::create_symlink(target, link);
  const Descriptor file = make_file(link);
  CHECK_EQ(write_at(file.fd(), "new", 3, 0), 0);
  CHECK_EQ(check::contents(target), "kept");
  CHECK_EQ(check::contents(link), "new");
  struct stat status{};
  CHECK(::lstat(link.c_str(), &status) == 0 && (status.st_mode & 0777) == 0600 && S_ISREG(status.st_mode));
  bool thrown = false;
  try {
    make_file(folder.path() / "none" / "file");
  } catch (const std::system_error& error) {
    thrown = error.code().value() == ENOENT;
  }
  CHECK(thrown);
}

TEST("a limit of the size of files is an error and no signal") {
  const check::Folder folder;
  const Descriptor file = make_file(folder.path() / "file");
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{4096, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string text(100, 'x');
  const int within = write_at(file.fd(), text.data(), text.size(), 4096 - text.size());
  const int beyond = write_at(file.fd(), text.data(), text.size(), 4096 - 1);
  const int blocks = allocate(file.fd(), 8192);
  ::setrlimit(RLIMIT_FSIZE, &before);
  CHECK_EQ(within, 0);
  CHECK_EQ(beyond, EFBIG);
  CHECK_EQ(blocks, EFBIG);
  CHECK_EQ(allocate(file.fd(), 8192), 0);
  CHECK_EQ(std::filesystem::file_size(folder.path() / "file"), 8192);
  CHECK_EQ(write_at(-1, "x", 1, 0), EBADF);
}

TEST("a text that is too long loses its end, a path its beginning") {
  char field[4];
  write_text(field, "abcdef");
  CHECK_EQ(std::string(field), "abc");
  write_text(field, "");
  CHECK_EQ(std::string(field), "");
  write_end_of_text(field, "abcdef");
  CHECK_EQ(std::string(field), "def");
  write_end_of_text(field, "ab");
  CHECK_EQ(std::string(field), "ab");
}

}  // namespace
