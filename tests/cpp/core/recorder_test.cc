// The recorder tells both files of each operation, and passes on what happens to it.
#include "core/recorder.h"

#include "check.h"
#include "environment.h"

namespace {

using namespace a2a;

// An operation that ends when the test says so.
class Controlled final : public Work {
 public:
  bool over = false, fails = false;
  bool done() override { return over; }
  bool wait_until(Deadline) override {
    if (over && fails) throw Error(Code::backend, "broken");
    return over;
  }
};

size_t count(const std::string& text, std::string_view part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

Batch batch_of(uint64_t number) {
  Batch batch;
  batch.signature.number = number;
  return batch;
}

TEST("without files there is no recorder, and operations run as they are") {
  const check::Variable dump("A2A_DUMP", nullptr), trace("A2A_TRACE", nullptr), record("A2A_RECORD", nullptr);
  const auto recorder = Recorder::open(0, 1, 7, "world");
  CHECK(recorder == nullptr);
  const auto work = std::make_shared<Controlled>();
  CHECK(Recorder::begin(recorder, batch_of(1)).run([&] { return work; }) == work);
  CHECK(Recorder::follow(recorder, {}, false, work) == work);
}

TEST("the end of an operation is recorded when a caller sees it, and an error reaches the caller") {
  const check::Folder dumps, traces;
  const check::Variable dump("A2A_DUMP", dumps.path().c_str()), trace("A2A_TRACE", traces.path().c_str());
  const auto recorder = Recorder::open(0, 1, 7, "world");
  if (!CHECK(recorder != nullptr)) return;
  const auto works = std::array{std::make_shared<Controlled>(), std::make_shared<Controlled>()};
  const auto first = Recorder::begin(recorder, batch_of(1)).run([&] { return works[0]; });
  const auto second = Recorder::begin(recorder, batch_of(2)).run([&] { return works[1]; });
  CHECK(!first->done() && !first->wait_until(Deadline::after_seconds(0)));
  works[1]->over = works[1]->fails = true;
  CHECK_THROWS(Code::backend, "broken", second->wait());
  CHECK_THROWS(Code::backend, "broken", second->wait());  // again
  const auto third = Recorder::begin(recorder, batch_of(3));
  CHECK_THROWS(Code::aborted, "closed",
               third.run([]() -> std::shared_ptr<Work> { throw Error(Code::aborted, "closed"); }));
  CHECK_EQ(count(check::contents(dumps.files()[0]), "broken"), 1);
  CHECK_EQ(count(check::contents(dumps.files()[0]), "closed"), 1);
  works[0]->over = true;
  CHECK(first->done());
  recorder->close(record::Fate::dropped);
  CHECK_EQ(count(check::contents(traces.files()[0]), "alltoallv"), 3);
}

TEST("a message is recorded once, however often it is polled") {
  const check::Folder traces;
  const check::Variable dump("A2A_DUMP", nullptr), trace("A2A_TRACE", traces.path().c_str());
  const auto recorder = Recorder::open(0, 2, 7, "world");
  if (!CHECK(recorder != nullptr)) return;
  const auto posted = std::make_shared<Controlled>();
  Message message{.sends = true, .peer = 1, .dtype = {2, 16, 1}};
  const auto work = Recorder::follow(recorder, message, true, posted);
  posted->over = true;
  CHECK(work->done() && work->done());
  work->wait();
  recorder->close(record::Fate::closed);
  CHECK_EQ(count(check::contents(traces.files()[0]), "float16"), 1);
}

}  // namespace
