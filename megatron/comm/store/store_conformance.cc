#include "megatron/comm/store/store_conformance.h"

#include <thread>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
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

TEST_P(StoreConformanceTest, GivesBackTheLatestValue) {
  const std::shared_ptr<Store> store = GetParam()();
  const std::string bytes("a\0b\xff", 4);
  EXPECT_THAT(store->Set("key", "old"), IsOk());
  EXPECT_THAT(store->Set("key", bytes), IsOk());
  EXPECT_THAT(store->Get("key", absl::ZeroDuration()), IsOkAndHolds(bytes));
}

TEST_P(StoreConformanceTest, AKeyThatIsHeldHasItsValue) {
  const std::shared_ptr<Store> store = GetParam()();
  EXPECT_THAT(store->Hold("first", "1"), IsOk());
  EXPECT_THAT(store->Hold("second", "2"), IsOk());
  EXPECT_THAT(store->Get("first", absl::ZeroDuration()), IsOkAndHolds("1"));
  EXPECT_THAT(store->Get("second", absl::ZeroDuration()), IsOkAndHolds("2"));
  EXPECT_THAT(store->Hold(std::string(kMaxStoreKey + 1, 'k'), ""),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_P(StoreConformanceTest, GetWaitsForTheKey) {
  const std::shared_ptr<Store> store = GetParam()();
  std::thread writer([&] {
    absl::SleepFor(absl::Milliseconds(20));
    EXPECT_THAT(store->Set("key", "value"), IsOk());
  });
  EXPECT_THAT(store->Get("key", absl::Seconds(60)), IsOkAndHolds("value"));
  writer.join();
}

TEST_P(StoreConformanceTest, WaitNamesTheKeysThatAreMissing) {
  const std::shared_ptr<Store> store = GetParam()();
  EXPECT_THAT(store->Set("rank/1", ""), IsOk());
  EXPECT_THAT(store->Wait({"rank/0", "rank/1", "rank/2"}, absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank/0, rank/2"), Not(HasSubstr("rank/1")))));
}

TEST_P(StoreConformanceTest, CountsFromManyThreadsExactly) {
  const std::shared_ptr<Store> store = GetParam()();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 100; ++j) EXPECT_THAT(store->Add("count", 2), IsOk());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(store->Add("count", -1), IsOkAndHolds(799));
  EXPECT_THAT(store->Get("count", absl::ZeroDuration()), IsOkAndHolds("799"));
}

TEST_P(StoreConformanceTest, RefusesToAddToTextAndToOverflow) {
  const std::shared_ptr<Store> store = GetParam()();
  EXPECT_THAT(store->Set("text", "x"), IsOk());
  EXPECT_THAT(store->Add("text", 1), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(store->Add("count", INT64_MAX), IsOk());
  EXPECT_THAT(store->Add("count", 1), StatusIs(absl::StatusCode::kOutOfRange));
}

TEST_P(StoreConformanceTest, RefusesLongKeysAndValues) {
  const std::shared_ptr<Store> store = GetParam()();
  const std::string long_key(kMaxStoreKey + 1, 'k'), long_value(kMaxStoreValue + 1, 'v');
  EXPECT_THAT(store->Set(long_key, ""), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(store->Set("key", long_value), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(store->Get(long_key, absl::Seconds(60)),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_P(StoreConformanceTest, SetsWhileAnotherThreadWaits) {
  const std::shared_ptr<Store> store = GetParam()();
  std::thread waiter([&] {
    EXPECT_THAT(store->Wait({"a", "b"}, absl::Seconds(60)), IsOk());
    EXPECT_THAT(store->Set("c", ""), IsOk());
  });
  EXPECT_THAT(store->Set("b", ""), IsOk());
  EXPECT_THAT(store->Add("a", 1), IsOkAndHolds(1));
  EXPECT_THAT(store->Get("c", absl::Seconds(60)), IsOkAndHolds(""));
  waiter.join();
}

TEST_P(StoreConformanceTest, TakesTheLongestKeysAndValues) {
  const std::shared_ptr<Store> store = GetParam()();
  const std::string key(kMaxStoreKey, 'k'), value(kMaxStoreValue, 'v');
  EXPECT_THAT(store->Set(key, value), IsOk());
  EXPECT_THAT(store->Get(key, absl::ZeroDuration()), IsOkAndHolds(value));
}

TEST_P(StoreConformanceTest, WaitsForMoreKeysThanFitOneMessage) {
  const std::shared_ptr<Store> store = GetParam()();
  EXPECT_THAT(store->Wait({}, absl::ZeroDuration()), IsOk());
  std::vector<std::string> keys;
  for (int i = 0; i < 1100; ++i) {
    keys.push_back(absl::StrCat(std::string(kMaxStoreKey - 8, 'k'), i));
    EXPECT_THAT(store->Set(keys.back(), ""), IsOk());
  }
  EXPECT_THAT(store->Wait(keys, absl::Seconds(60)), IsOk());
  keys.push_back("missing");
  EXPECT_THAT(store->Wait(keys, absl::Milliseconds(10)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("missing")));
}

}  // namespace
}  // namespace megatron
