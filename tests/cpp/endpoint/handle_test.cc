// What a handle says, and which texts are refused.
#include "endpoint/handle.h"

#include "check.h"

namespace {

using namespace a2a;
using namespace a2a::endpoint;

Handle example() {
  Handle handle;
  handle.id = {1, 2, 3, 250};
  handle.pid = 4711;
  handle.node = "node7";
  handle.network = "a kernel and 12";
  handle.address = resolve("@a name", Deadline::never()).front();
  return handle;
}

TEST("a handle says what it was made of") {
  for (const std::string secret : {"", "a secret of the job"}) {
    const Handle made = example(), read = unpack(pack(made, secret), secret, "handles[0]");
    CHECK(read.id == made.id && read.pid == 4711u && read.on_unix());
    CHECK_EQ(read.node, made.node);
    CHECK_EQ(read.network, made.network);
    CHECK_EQ(read.address.length, made.address.length);
    CHECK_EQ(std::memcmp(&read.address.raw, &made.address.raw, made.address.length), 0);
    CHECK_EQ(read.in_words(), "pid 4711 on node7");
  }
}

TEST("every changed character of a handle is noticed") {
  const std::string text = pack(example(), "secret");
  for (size_t i = 0; i < text.size(); ++i) {
    const check::Note note("character", i);
    std::string changed = text;
    changed[i] = changed[i] == '0' ? '1' : '0';
    CHECK_THROWS(Code::invalid_argument, "handles[3]", unpack(changed, "secret", "handles[3]"));
    CHECK_THROWS(Code::invalid_argument, "handles[3]", unpack(text.substr(0, i), "secret", "handles[3]"));
  }
  CHECK_THROWS(Code::invalid_argument, "handles[3]", unpack(text + "00", "secret", "handles[3]"));
}

TEST("a handle of another job, or of another version, is none") {
  const std::string text = pack(example(), "secret");
  CHECK_THROWS(Code::invalid_argument, "another job", unpack(text, "other", "x"));
  CHECK_THROWS(Code::invalid_argument, "another job", unpack(text, "", "x"));
  std::string later = text;
  later[later.find(':') - 1] = '2';
  CHECK_THROWS(Code::invalid_argument, "is of version 2", unpack(later, "secret", "x"));
  CHECK_THROWS(Code::invalid_argument, "no handle", unpack(std::string(kLongestHandle + 1, 'a'), "secret", "x"));
}

TEST("a key is for one endpoint and one secret") {
  Handle other = example();
  other.id[0] = 2;
  CHECK(key_of(example(), "s") != key_of(other, "s") && key_of(example(), "s") != key_of(example(), "t"));
}

}  // namespace
