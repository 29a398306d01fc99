#include "megatron/comm/memory_store.h"

#include <thread>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(MemoryStoreTest, GivesBackTheLatestValue) {
  MemoryStore store;
  const std::string bytes("a\0b\xff", 4);
  EXPECT_THAT(store.Set("key", "old"), IsOk());
  EXPECT_THAT(store.Set("key", bytes), IsOk());
  EXPECT_THAT(store.Get("key", absl::ZeroDuration()), IsOkAndHolds(bytes));
}

TEST(MemoryStoreTest, GetWaitsForTheKey) {
  MemoryStore store;
  std::thread writer([&] {
    absl::SleepFor(absl::Milliseconds(20));
    EXPECT_THAT(store.Set("key", "value"), IsOk());
  });
  EXPECT_THAT(store.Get("key", absl::Seconds(60)), IsOkAndHolds("value"));
  writer.join();
}

TEST(MemoryStoreTest, WaitNamesTheKeysThatAreMissing) {
  MemoryStore store;
  EXPECT_THAT(store.Set("rank/1", ""), IsOk());
  EXPECT_THAT(store.Wait({"rank/0", "rank/1", "rank/2"}, absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank/0, rank/2"), Not(HasSubstr("rank/1")))));
}

TEST(MemoryStoreTest, CountsFromManyThreadsExactly) {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 100; ++j) EXPECT_THAT(store.Add("count", 2), IsOk());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(store.Add("count", -1), IsOkAndHolds(799));
  EXPECT_THAT(store.Get("count", absl::ZeroDuration()), IsOkAndHolds("799"));
}

TEST(MemoryStoreTest, RefusesToCountWhatIsNoNumberAndWhatOverflows) {
  MemoryStore store;
  EXPECT_THAT(store.Set("text", "x"), IsOk());
  EXPECT_THAT(store.Add("text", 1), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(store.Add("count", INT64_MAX), IsOk());
  EXPECT_THAT(store.Add("count", 1), StatusIs(absl::StatusCode::kOutOfRange));
}

TEST(MemoryStoreTest, RefusesLongKeysAndValues) {
  MemoryStore store;
  const std::string long_key(kMaxStoreKey + 1, 'k'), long_value(kMaxStoreValue + 1, 'v');
  EXPECT_THAT(store.Set(long_key, ""), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(store.Set("key", long_value), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(store.Get(long_key, absl::Seconds(60)), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace megatron
