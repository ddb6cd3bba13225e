// File descriptors of the library. Not public.
#pragma once

#include <sys/types.h>

#include <utility>

namespace a2a {

// The file to which a descriptor refers. A program may close descriptors that it does not know, as daemons do, and its
// next file gets the same number. Inodes without a file system of their own (epoll, and pidfds before Linux 6.9) all
// have one number, so they cannot be told apart.
class FileIdentity {
 public:
  FileIdentity() = default;  // no file
  explicit FileIdentity(int fd) noexcept;
  // Whether the descriptor is open and refers to this file.
  bool is(int fd) const noexcept;

 private:
  bool known_ = false;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// A descriptor that closes itself. It is never a standard stream: in a program that runs without one of these, the
// kernel would give its number to the next file, which would then receive the program's output.
class Descriptor {
 public:
  // Takes ownership of a descriptor that was just opened, or of the -1 of a failure, whose errno it keeps. If no number
  // above those of the standard streams is free, it closes the descriptor, and errno says why.
  explicit Descriptor(int fd = -1) noexcept;
  Descriptor(Descriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), file_(std::exchange(other.file_, FileIdentity())) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(file_, other.file_);
    return *this;
  }
  ~Descriptor() { reset(); }

  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  // Returns the number, or -1 if the program has closed it, whatever file has the number now.
  int if_ours() const noexcept { return open() && file_.is(fd_) ? fd_ : -1; }
  int release() noexcept { return std::exchange(fd_, -1); }
  // Closes it, unless the program has.
  void reset() noexcept;

 private:
  int fd_;
  FileIdentity file_;
};

}  // namespace a2a
