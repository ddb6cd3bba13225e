#include "transport/shm/protocol/texts.h"

#include <algorithm>

#include "transport/shm/protocol/layout.h"

namespace a2a::shm {

std::string peer_text(const char* text) {
  std::string result;
  for (size_t i = 0; i < kTextBytes && text[i] != '\0'; ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    result += c < 0x20 || c == 0x7f ? '?' : static_cast<char>(c);
  }
  return result;
}

void write_text(char* words, std::string_view text) {
  size_t length = std::min(text.size(), kTextBytes - 1);
  // Does not cut a UTF-8 character.
  while (length > 0 && length < text.size() && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) --length;
  text.copy(words, length);
  words[length] = '\0';
}

}  // namespace a2a::shm
