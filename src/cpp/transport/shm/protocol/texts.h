// Texts in the words that ranks share.
#pragma once

#include <string>
#include <string_view>

namespace a2a::shm {

// Text that a peer wrote into its words, made safe to print.
std::string peer_text(const char* text);
// Writes text into such words, cut to fit.
void write_text(char* words, std::string_view text);

}  // namespace a2a::shm
