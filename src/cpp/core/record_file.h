// Helpers of the files of A2A_DUMP and A2A_TRACE. Not public.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "a2a/types.h"
#include "runtime/descriptor.h"

namespace a2a {

// Returns the time in nanoseconds since 1970. Processes of one host have the same clock.
uint64_t wall_clock();

// Returns the name of this host, or "unknown".
std::string host_name();

// Returns "rank0-of-4.host.pid.1.a2a": the name of this process's `count`th file.
std::string record_name(Rank rank, int size, unsigned count, std::string_view suffix);

// Makes an empty file of mode 600. A file, link or pipe that has this name is removed, not opened: others may write to
// the folder. Throws std::system_error.
Descriptor make_file(const std::string& path);

// The next two return an errno, or 0. A limit of the size of files is EFBIG for them: the SIGXFSZ that comes with it
// does not reach the program.

// Allocates the blocks of the file.
int allocate(int fd, size_t bytes);
// Writes all of it. Returns the error of the first failure.
int write_at(int fd, const void* from, size_t bytes, size_t offset);

// Writes the beginning of a text that is too long.
template <size_t N>
void write_text(char (&field)[N], std::string_view text) {
  text = text.substr(0, N - 1);
  std::memcpy(field, text.data(), text.size());
  field[text.size()] = '\0';
}

// Writes the end of a text that is too long: the end of a path says more than its beginning.
template <size_t N>
void write_end_of_text(char (&field)[N], std::string_view text) {
  write_text(field, text.substr(text.size() - std::min(text.size(), N - 1)));
}

}  // namespace a2a
