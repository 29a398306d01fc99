#include "megatron/train/inference/batch_memory.h"

#include <algorithm>
#include <limits>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kModel = 1000, kRequest = 100;

int64_t Bytes(int64_t batch) { return kModel + kRequest * batch; }

TEST(BatchMemoryTest, ABatchThatFitsToTheByteIsTaken) {
  for (const int64_t batch : {1, 2, 7, 256, 1000}) {
    EXPECT_THAT(CheckBatchMemory(batch, 64, Bytes(batch), 0, Bytes), IsOk()) << batch;
    EXPECT_THAT(CheckBatchMemory(batch, 64, Bytes(batch) - 1, 0, Bytes),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << batch;
  }
}

TEST(BatchMemoryTest, TheErrorSaysWhatARequestTakesAndHowManyFit) {
  for (const int64_t batch : {6, 300, 1 << 20}) {
    EXPECT_THAT(CheckBatchMemory(batch, 64, Bytes(5) + 99, 0, Bytes).message(),
                AllOf(HasSubstr("1.56 KiB of memory have room for 5 requests of 64 tokens"),
                      HasSubstr("the model takes 1000 B, a request 100 B")))
        << batch;
  }
  EXPECT_THAT(CheckBatchMemory(3, 64, kModel, 0, Bytes).message(),
              HasSubstr("the model and one request of 64 tokens take 1.07 KiB"));
}

TEST(BatchMemoryTest, TheNumberThatTheErrorNamesLeavesFreeWhatIsReserved) {
  const int64_t available = Bytes(8) + 50;
  EXPECT_THAT(CheckBatchMemory(9, 64, available, 300, Bytes).message(),
              AllOf(HasSubstr("room for 5 requests"), HasSubstr("300 B must stay free")));
  EXPECT_THAT(CheckBatchMemory(6, 64, available, 300, Bytes).message(),
              HasSubstr("room for 5 requests"));
  EXPECT_THAT(CheckBatchMemory(5, 64, available, 300, Bytes), IsOk());
  EXPECT_THAT(CheckBatchMemory(1, 64, Bytes(1) + 299, 300, Bytes).message(),
              AllOf(HasSubstr("the model and one request"), HasSubstr("300 B must stay free")));
}

TEST(BatchMemoryTest, MoreIsReservedWhereMoreIsAvailable) {
  constexpr int64_t kMiB = 1 << 20;
  EXPECT_EQ(ReservedBytes(0), 16 * kMiB);
  EXPECT_EQ(ReservedBytes(300 * kMiB), 31 * kMiB);
}

TEST(BatchMemoryTest, RequestsThatTakeMoreInALargeBatchAreCountedAsTheyAre) {
  const auto bytes = [](int64_t batch) {
    return Bytes(batch) + 900 * std::max<int64_t>(0, batch - 500);
  };
  EXPECT_THAT(CheckBatchMemory(10000, 64, bytes(600), 0, bytes).message(),
              HasSubstr("have room for 600 requests"));
  EXPECT_THAT(CheckBatchMemory(600, 64, bytes(600), 0, bytes), IsOk());
}

TEST(BatchMemoryTest, AHugeBatchIsNotMeasured) {
  int64_t largest = 0;
  const auto bytes = [&](int64_t batch) {
    largest = std::max(largest, batch);
    return Bytes(batch);
  };
  EXPECT_THAT(
      CheckBatchMemory(std::numeric_limits<int32_t>::max(), 1, Bytes(20), 0, bytes).message(),
      HasSubstr("have room for 20 requests"));
  EXPECT_LE(largest, 256);
}

TEST(BatchMemoryTest, ThereAreFewerThanTwoToThe31Places) {
  EXPECT_THAT(CheckBatchMemory(1 << 21, 1024, std::nullopt, 0, Bytes).message(),
              AllOf(HasSubstr("max_batch is 2097152"), HasSubstr("2097151 requests of 1024")));
  EXPECT_THAT(CheckBatchMemory((1 << 21) - 1, 1024, std::nullopt, 0, Bytes), IsOk());
}

}  // namespace
}  // namespace megatron
