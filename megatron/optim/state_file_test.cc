#include "megatron/optim/state_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/scripted_engine.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kPage = BlockFile::kAlignment;
constexpr auto kRead = StateFile::Access::kRead;
constexpr auto kWrite = StateFile::Access::kWrite;
constexpr auto kUpdate = StateFile::Access::kUpdate;

std::string TestPath(const std::string& name) { return absl::StrCat(testing::TempDir(), name); }

int64_t MoveAll(const Block& block) { return block.bytes; }

// Three tensors of 1000 elements, in extents of 128, of which the last is shorter.
class StateFileTest : public ::testing::Test {
 protected:
  static constexpr int64_t kElements = 1000, kExtent = 128;

  StateFileTest()
      : file_({DType::kFloat32, DType::kBFloat16, DType::kFloat32}, kElements, kExtent, Device(),
              &ledger_) {}

  void Open(ScriptedEngine::Script script) {
    file_.Open(ScriptedBlockFile(TestPath("state_file"), file_.bytes(), kPage, std::move(script)));
  }

  // Calls body(begin, end) for each extent.
  absl::Status Pass(StateFile::Access access, const std::function<void(int64_t, int64_t)>& body) {
    file_.StartPass(access);
    for (int64_t extent = 0; extent < file_.num_extents(); ++extent) {
      if (!file_.Enter(extent).ok()) break;
      body(extent * kExtent, file_.ExtentEnd(extent * kExtent));
    }
    return file_.EndPass();
  }

  static float ValueOf(size_t tensor, int64_t element) {
    return static_cast<float>(10000 * tensor + element);
  }

  MemoryLedger ledger_;
  StateFile file_;
};

TEST_F(StateFileTest, APassReadsWhatAPassWrote) {
  Open(MoveAll);
  EXPECT_EQ(file_.num_extents(), 8);
  EXPECT_EQ(file_.bytes(), 8 * 3 * kPage);
  EXPECT_GT(ledger_.AtPeak().at("host/optimizer extents"), 3 * 3 * kPage);
  ASSERT_THAT(Pass(kWrite,
                   [&](int64_t begin, int64_t end) {
                     for (const size_t tensor : {0, 2}) {
                       float* data = file_.Elements(tensor, begin, end).data<float>();
                       for (int64_t i = begin; i < end; ++i) *data++ = ValueOf(tensor, i);
                     }
                   }),
              IsOk());
  ASSERT_THAT(Pass(kUpdate,
                   [&](int64_t begin, int64_t end) {
                     float* data = file_.Elements(2, begin, end).data<float>();
                     for (int64_t i = begin; i < end; ++i) *data++ += 0.5f;
                   }),
              IsOk());
  int64_t seen = 0;
  ASSERT_THAT(Pass(kRead,
                   [&](int64_t begin, int64_t end) {
                     const Tensor middle = file_.Elements(1, begin, end);
                     for (int64_t i = begin; i < end; ++i, ++seen) {
                       EXPECT_EQ(file_.Elements(0, i, end).data<float>()[0], ValueOf(0, i));
                       EXPECT_EQ(static_cast<const uint16_t*>(middle.raw())[i - begin], 0);
                       EXPECT_EQ(file_.Elements(2, i, end).data<float>()[0], ValueOf(2, i) + 0.5f);
                     }
                   }),
              IsOk());
  EXPECT_EQ(seen, kElements);
}

TEST_F(StateFileTest, AnyElementsAreRead) {
  Open(MoveAll);
  ASSERT_THAT(Pass(kWrite,
                   [&](int64_t begin, int64_t end) {
                     float* data = file_.Elements(2, begin, end).data<float>();
                     for (int64_t i = begin; i < end; ++i) *data++ = ValueOf(2, i);
                   }),
              IsOk());
  std::mt19937 random(1);
  for (int i = 0; i < 100; ++i) {
    const int64_t begin = random() % kElements, count = 1 + random() % (kElements - begin);
    std::vector<float> values(count, -1);
    ASSERT_THAT(file_.Read(2, begin, Tensor(values.data(), DType::kFloat32, {count})), IsOk());
    for (int64_t j = 0; j < count; ++j) ASSERT_EQ(values[j], ValueOf(2, begin + j));
  }
}

TEST_F(StateFileTest, AnExtentIsReadAheadAndOneIsWrittenMeanwhile) {
  StateFile file({DType::kFloat32}, kElements, kExtent, Device(), nullptr);
  // The script moves blocks when they are waited for, the newest first, so that what it has not
  // seen is on its way.
  std::vector<std::string> seen;
  file.Open(ScriptedBlockFile(TestPath("ahead"), file.bytes(), kPage, [&](const Block& block) {
    seen.push_back(absl::StrCat(block.is_write ? "w" : "r", block.offset / kPage));
    return block.bytes;
  }));
  file.StartPass(kUpdate);
  ASSERT_THAT(file.Enter(0), IsOk());
  EXPECT_THAT(seen, testing::ElementsAre("r1", "r0"));
  // While the caller works on extent 1, neither the read of 2 nor the write of 0 was waited for.
  ASSERT_THAT(file.Enter(1), IsOk());
  EXPECT_THAT(seen, testing::ElementsAre("r1", "r0"));
  ASSERT_THAT(file.Enter(2), IsOk());
  EXPECT_THAT(seen, testing::ElementsAre("r1", "r0", "w1", "r2", "w0"));
  for (int64_t extent = 3; extent < 8; ++extent) ASSERT_THAT(file.Enter(extent), IsOk());
  ASSERT_THAT(file.EndPass(), IsOk());
  for (int64_t extent = 0; extent < 8; ++extent) {
    EXPECT_EQ(std::count(seen.begin(), seen.end(), absl::StrCat("r", extent)), 1);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), absl::StrCat("w", extent)), 1);
  }
}

TEST_F(StateFileTest, AFileOfTheDiskBeginsWithZeros) {
  ASSERT_THAT(file_.Open(TestPath("on_disk")), IsOk());
  EXPECT_THAT(file_.method(), HasSubstr("page cache"));
  std::vector<float> values(kElements, 1);
  ASSERT_THAT(file_.Read(0, 0, Tensor(values.data(), DType::kFloat32, {kElements})), IsOk());
  EXPECT_THAT(values, testing::Each(0));
  EXPECT_THAT(StateFile({DType::kFloat32}, 10, 10, Device(), nullptr).Open("/nowhere/at/all"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/at/all")));
}

TEST_F(StateFileTest, TheFirstErrorStaysAndNothingMovesAfterIt) {
  for (const bool writes : {false, true}) {
    StateFile file({DType::kFloat32}, kElements, kExtent, Device(), nullptr);
    int calls = 0;
    const std::string path = TestPath("failing");
    file.Open(ScriptedBlockFile(path, file.bytes(), kPage, [&](const Block& block) -> int64_t {
      ++calls;
      return block.offset == 3 * kPage && block.is_write == writes ? -EIO : block.bytes;
    }));
    file.StartPass(kUpdate);
    int64_t extent = 0;
    while (extent < file.num_extents() && file.Enter(extent).ok()) ++extent;
    EXPECT_LT(extent, file.num_extents());
    const auto is_told =
        StatusIs(testing::_, AllOf(HasSubstr(absl::StrCat(writes ? "write" : "read", " '", path)),
                                   HasSubstr("at 12288: ")));
    EXPECT_THAT(file.EndPass(), is_told);
    EXPECT_THAT(file.status(), is_told);
    const int before = calls;
    file.StartPass(kUpdate);
    EXPECT_THAT(file.Enter(0), is_told);
    EXPECT_THAT(file.EndPass(), is_told);
    EXPECT_THAT(file.Fetch(0, 0, 10).status(), is_told);
    EXPECT_EQ(calls, before);
  }
}

TEST_F(StateFileTest, AFileThatBecameShorterIsDataLoss) {
  Open([](const Block& block) { return block.offset >= 5 * kPage ? 0 : block.bytes; });
  EXPECT_THAT(Pass(kUpdate, [](int64_t, int64_t) {}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the file ends there")));
}

// A fault of one transfer: an error, or fewer bytes than were asked for.
struct Fault {
  int64_t transfer = -1;  // the transfer's number; < 0: none
  int64_t error = 0;      // an errno; 0: the file ends there
  bool torn = false;      // half of the bytes move before the error
  bool is_error = true;   // false: half of the bytes move, and the rest if it is asked for
};

// Fills a file, changes it in passes and reads parts of it, and compares all that it gives with a
// plain array, until the first error. Returns that error, and counts the transfers.
absl::Status UseFile(const std::string& path, const Fault& fault, uint32_t seed,
                     int64_t* transfers) {
  constexpr int64_t kElements = 1500, kExtent = 400;
  StateFile file({DType::kFloat32, DType::kFloat32}, kElements, kExtent, Device(), nullptr);
  *transfers = 0;
  std::optional<Block> torn;
  file.Open(ScriptedBlockFile(path, file.bytes(), 2 * kPage, [&](const Block& block) -> int64_t {
    const bool is_rest = torn.has_value() && block.is_write == torn->is_write &&
                         block.offset == torn->offset + torn->bytes / 2;
    if (is_rest) {
      torn.reset();
      return -fault.error;
    }
    if ((*transfers)++ != fault.transfer) return block.bytes;
    // A part of a page is an error by itself.
    const bool is_cut = block.bytes > kPage;
    if (!fault.is_error) return is_cut ? block.bytes / 2 : block.bytes;
    if (!fault.torn) return -fault.error;
    if (is_cut) torn = block;
    return block.bytes / 2;
  }));
  std::vector<float> plain(2 * kElements);
  std::mt19937 random(seed);
  const auto pass = [&](StateFile::Access access, float factor, float summand) -> absl::Status {
    file.StartPass(access);
    for (int64_t extent = 0; extent < file.num_extents(); ++extent) {
      if (!file.Enter(extent).ok()) break;
      const int64_t begin = extent * kExtent, end = file.ExtentEnd(begin);
      for (const size_t tensor : {0, 1}) {
        float* const data = file.Elements(tensor, begin, end).data<float>();
        float* const mine = &plain[tensor * kElements + begin];
        for (int64_t i = 0; i < end - begin; ++i) {
          EXPECT_EQ(data[i], access == kWrite ? 0 : mine[i]);
          if (access == kRead) continue;
          data[i] = mine[i] = factor * mine[i] + summand + static_cast<float>(i);
        }
      }
    }
    return file.EndPass();
  };
  const auto read = [&]() -> absl::Status {
    const int64_t begin = random() % kElements, count = 1 + random() % (kElements - begin);
    std::vector<float> values(count);
    const size_t tensor = random() % 2;
    MEGATRON_RETURN_IF_ERROR(
        file.Read(tensor, begin, Tensor(values.data(), DType::kFloat32, {count})));
    for (int64_t i = 0; i < count; ++i) EXPECT_EQ(values[i], plain[tensor * kElements + begin + i]);
    return absl::OkStatus();
  };
  MEGATRON_RETURN_IF_ERROR(pass(kWrite, 0, 1));
  for (const float summand : {2.0f, 3.0f, 4.0f}) {
    MEGATRON_RETURN_IF_ERROR(pass(kUpdate, 0.5f, summand));
    MEGATRON_RETURN_IF_ERROR(read());
  }
  return pass(kRead, 0, 0);
}

// Each run has one fault, of any of its transfers.
TEST(StateFileFaultsTest, NoneOfAThousandErrorsIsSilent) {
  const std::string path = TestPath("faults");
  std::mt19937 random(1);
  int told = 0, outlived = 0;
  for (uint32_t run = 0; told < 1000; ++run) {
    SCOPED_TRACE(absl::StrCat("run ", run));
    int64_t transfers = 0;
    ASSERT_THAT(UseFile(path, {}, run, &transfers), IsOk());
    Fault fault;
    fault.transfer = random() % transfers;
    const int64_t errors[] = {EIO, ENOSPC, EBADF, ETIMEDOUT, 0};
    fault.error = errors[random() % 5];
    fault.torn = random() % 3 == 0;
    fault.is_error = random() % 5 != 0;
    const absl::Status status = UseFile(path, fault, run, &transfers);
    if (!fault.is_error) {
      // What a short transfer lacks is transferred again.
      ASSERT_THAT(status, IsOk());
      ++outlived;
      continue;
    }
    ASSERT_THAT(status, StatusIs(testing::Not(absl::StatusCode::kOk),
                                 testing::ContainsRegex(absl::StrCat("'", path, "' at [0-9]+: "))));
    ++told;
  }
  EXPECT_GT(outlived, 100);
}

TEST(StateFilePlanTest, OnTheMetaDeviceThereIsNoFile) {
  StateFile file({DType::kFloat32, DType::kFloat32}, 5000, 1024, {DeviceType::kMeta}, nullptr);
  EXPECT_EQ(file.bytes(), 2 * (4 * 4096 + 4096));
  file.StartPass(kUpdate);
  EXPECT_THAT(file.Enter(4), IsOk());
  EXPECT_EQ(file.Elements(1, 4096, 5000).numel(), 904);
  EXPECT_THAT(file.EndPass(), IsOk());
}

}  // namespace
}  // namespace megatron
