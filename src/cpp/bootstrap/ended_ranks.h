// The launcher's notices of ranks that have ended. Not public.
#pragma once

#include <string>

#include "a2a/bootstrap.h"

namespace a2a {

// ended_rank() is in a2a/bootstrap.h. Call it while the meeting of a job is not complete: with such a rank it never
// will be.
//
// A2A_ENDED names a file of the launcher. Its first line has the number of ranks and the name of the job. Each other
// line is for a rank that has ended: "2 exited with code 0". A rank that fails writes the reason there before it ends:
// "2 raised ..." or "2 gave up: ...". Meetings of one job, "job#0", "job#1" and so on, share the file.
//
// Where the launcher starts failed ranks again, only it knows whether a rank has ended for good. The second line is
// then "launcher: 7": the descriptor of the file, in the same folder, into which failing ranks write their reasons.

// Throws Error(peer_lost) with ended_rank(), if there is one.
void require_all_running(const std::string& job, int size);

// Returns the text of that error.
std::string ended_rank_text(const std::string& ended, const std::string& job);

}  // namespace a2a
