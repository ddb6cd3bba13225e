#include "transport/shm/copy/staging.h"

#include "check.h"

namespace {

using namespace a2a;
using namespace a2a::shm;
using std::chrono::nanoseconds;

TEST("far lines count as slow earlier") {
  StagingStores near, far(StagingStores::kSlowestFar);
  for (int i = 0; i < 3; ++i) near.took(10240, nanoseconds(1500)), far.took(10240, nanoseconds(1500));
  CHECK(near.choose() == Stores::cached && far.choose() == Stores::streaming);
}

TEST("staging uses streaming stores after several slow chunks, and cached stores later") {
  constexpr size_t kBytes = 32768;
  constexpr auto kFast = nanoseconds(100 * 32), kSlow = nanoseconds(400 * 32);
  StagingStores stores;
  int due = 0;
  for (int i = 0; i < 100; ++i) due += stores.is_due();
  CHECK_EQ(due, 25);
  for (int i = 0; i < 10; ++i) {  // a single interruption may spoil one measurement
    stores.took(kBytes, kSlow);
    CHECK(stores.is_due() && stores.is_due());  // it may be the first of several
    stores.took(kBytes, kFast);
    CHECK(stores.choose() == Stores::cached);
  }
  for (int i = 0; i < 3; ++i) stores.took(kBytes, kSlow);
  CHECK(stores.choose() == Stores::streaming);
  int streamed = 0;
  for (; stores.choose() == Stores::streaming && streamed < 10'000; ++streamed) stores.took(kBytes, kFast);
  CHECK_EQ(streamed, 256);
  stores.took(kBytes, kSlow);  // still slow: one try is enough
  CHECK(stores.choose() == Stores::streaming);
  while (stores.choose() == Stores::streaming) stores.took(kBytes, kFast);
  stores.took(kBytes, kFast);
  stores.took(kBytes, kSlow);
  CHECK(stores.choose() == Stores::cached);
}

}  // namespace
