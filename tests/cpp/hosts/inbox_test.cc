#include "transport/hosts/inbox.h"

#include <string>

#include "check.h"
#include "runtime/object_bytes.h"

namespace {

using namespace a2a;
using namespace a2a::hosts;

Message message(Process from, uint64_t channel, size_t bytes = 8) {
  return {from, std::string(object_bytes(channel)) + std::string(bytes - sizeof(channel), 'x')};
}

TEST("messages of a channel are taken in the order in which they came") {
  Inbox inbox;
  inbox.deliver(message(1, 7, 9));
  inbox.deliver(message(2, 8));
  inbox.deliver(message(3, 7));
  CHECK(inbox.has(7) && !inbox.has(9) && !inbox.take(9));
  CHECK_EQ(inbox.take(7)->bytes.size(), 9);
  CHECK_EQ(inbox.take(7)->from, 3);
  CHECK(!inbox.take(7));
  CHECK_EQ(inbox.take(8)->from, 2);
}

TEST("a closed channel has no messages, and a message without a channel is none") {
  Inbox inbox;
  inbox.deliver(message(1, 7));
  inbox.close(7);
  inbox.deliver(message(1, 7));
  inbox.deliver({1, "short"});
  CHECK(!inbox.has(7) && !inbox.overrun(1));
}

TEST("of a process whose messages nobody takes nothing more is kept") {
  Inbox inbox(20);
  for (int i = 0; i < 5; ++i) {  // what is taken, or closed, does not count
    inbox.deliver(message(1, 7, 20));
    CHECK(inbox.take(7));
  }
  inbox.deliver(message(1, 6, 20));
  inbox.close(6);
  inbox.deliver(message(1, 7, 12));
  inbox.deliver(message(2, 7, 20));
  CHECK(!inbox.overrun(1) && !inbox.overrun(2) && !inbox.overrun(3));
  inbox.deliver(message(1, 7, 12));
  CHECK(inbox.overrun(1) && !inbox.overrun(2));
  CHECK_EQ(inbox.take(7)->from, 1);
  CHECK_EQ(inbox.take(7)->from, 2);
  inbox.deliver(message(1, 7));
  CHECK(!inbox.has(7));
}

}  // namespace
