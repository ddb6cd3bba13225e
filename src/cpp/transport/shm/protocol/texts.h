// Texts in the words that ranks share.
#pragma once

#include <string>
#include <string_view>

namespace a2a::shm {

// Returns a text that a peer wrote, with control characters replaced.
std::string peer_text(const char* text);
// Writes a text into such words, and truncates it to kTextBytes - 1.
void write_text(char* words, std::string_view text);

}  // namespace a2a::shm
