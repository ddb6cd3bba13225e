#include "transport/shm/protocol/texts.h"

#include <array>
#include <cstring>

#include "check.h"
#include "transport/shm/protocol/layout.h"

namespace {

using namespace a2a::shm;

std::string through_words(std::string_view text) {
  std::array<char, kTextBytes> words;
  words.fill('#');
  write_text(words.data(), text);
  return peer_text(words.data());
}

TEST("a text that fits is unchanged, a longer one is truncated") {
  CHECK_EQ(through_words(""), "");
  CHECK_EQ(through_words("counts[1] = -1"), "counts[1] = -1");
  const std::string longest(kTextBytes - 1, 'x');
  CHECK_EQ(through_words(longest), longest);
  CHECK_EQ(through_words(longest + "y"), longest);
}

TEST("no character of UTF-8 is cut") {
  const std::string most(kTextBytes - 3, 'x');
  CHECK_EQ(through_words(most + "\xc3\xa9"), most + "\xc3\xa9");
  CHECK_EQ(through_words(most + "x\xc3\xa9"), most + "x");
  CHECK_EQ(through_words(most + "\xe2\x82\xac"), most);
}

TEST("control characters of a peer are replaced, and its text ends with the words") {
  CHECK_EQ(peer_text("a\nb\x1b[0m\x7f"), "a?b?[0m?");
  std::array<char, kTextBytes + 8> endless;
  endless.fill('x');
  CHECK_EQ(peer_text(endless.data()), std::string(kTextBytes, 'x'));
}

}  // namespace
