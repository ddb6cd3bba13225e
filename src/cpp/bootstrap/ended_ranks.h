// What a launcher tells ranks that wait for others. Not public.
#pragma once

#include <optional>
#include <string>

namespace a2a {

// What the launcher says of a rank that has ended, such as "rank 2 exited with code 0". Ranks of a job of `size` whose
// meeting is not complete ask: it never will be. Nothing when none has ended, or the launcher does not say, or speaks
// of another job, as in ranks that another launcher started inside of it.
//
// A2A_ENDED names a file of the launcher's: number of ranks and name of the job in its first line, then a line for each
// rank that has ended, "2 exited with code 0". Meetings of one job, "job#0", "job#1" and so on, have it in common.
std::optional<std::string> ended_rank(const std::string& job, int size);

// Throws Error(peer_lost) with that.
void require_all_running(const std::string& job, int size);

// The message of that error.
std::string in_words(const std::string& ended, const std::string& job);

}  // namespace a2a
