#include "megatron/data/indexed/merge_datasets.h"

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/fault_file_system.h"
#include "megatron/base/file_system.h"
#include "megatron/data/indexed/indexed_dataset.h"
#include "megatron/data/indexed/indexed_dataset_writer.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

bool Always(const MergeReport&) { return true; }

using Documents = std::vector<std::vector<std::string>>;  // each sequence as its bytes

class MergeDatasetsTest : public testing::Test {
 protected:
  MergeDatasetsTest() : folder_(testing::TempDir() + "/merge_datasets") {
    EXPECT_THAT(fs_.RemoveTree(folder_), IsOk());
    EXPECT_THAT(fs_.CreateDirs(folder_ + "/in"), IsOk());
  }

  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  void Write(const std::string& prefix, const Documents& documents,
             TokenType type = TokenType::kU16, std::optional<int8_t> mode = std::nullopt) {
    auto writer = IndexedDatasetWriter::Create(fs_, prefix, type);
    ASSERT_THAT(writer, IsOk());
    for (const auto& document : documents) {
      for (const std::string& sequence : document)
        ASSERT_THAT((*writer)->AddStoredSequence(sequence, mode), IsOk());
      (*writer)->EndDocument();
    }
    ASSERT_THAT((*writer)->Finalize(), IsOk());
  }

  std::string File(const std::string& path) { return ReadFileToString(fs_, path).value_or("none"); }

  void ExpectSameFiles(const std::string& a, const std::string& b) {
    EXPECT_EQ(File(a + ".bin"), File(b + ".bin"));
    EXPECT_EQ(File(a + ".idx"), File(b + ".idx"));
  }

  FileSystem& fs_ = PosixFileSystem();
  const std::string folder_;
};

TEST_F(MergeDatasetsTest, TheResultEqualsTheOutputOfOneWriter) {
  Write(Path("in/b"), {{"aabb", "cc"}, {}});
  Write(Path("in/a"), {{"dd"}});
  Write(Path("in/c"), {});
  Write(Path("in/d"), {{"eeee"}, {"ff", "gg", "hh"}});
  Write(Path("whole"), {{"dd"}, {"aabb", "cc"}, {}, {"eeee"}, {"ff", "gg", "hh"}});
  const auto prefixes = FindDatasets(fs_, Path("in"));
  ASSERT_THAT(prefixes,
              IsOkAndHolds(ElementsAre(Path("in/a"), Path("in/b"), Path("in/c"), Path("in/d"))));
  const auto report = MergeDatasets(*prefixes, Path("out"), fs_, Always);
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->datasets, 4);
  EXPECT_EQ(report->documents, 5);
  EXPECT_EQ(report->sequences, 7);
  EXPECT_EQ(report->tokens, 9);
  EXPECT_EQ(report->bytes, 18);
  ExpectSameFiles(Path("out"), Path("whole"));
}

TEST_F(MergeDatasetsTest, EveryTokenTypeIsCopiedUnchanged) {
  for (const TokenType type : {TokenType::kU8, TokenType::kI8, TokenType::kI16, TokenType::kU16,
                               TokenType::kI32, TokenType::kI64}) {
    Write(Path("in/a"), {{"01234567"}}, type);
    Write(Path("in/b"), {{"\xff\xff\xff\xff\xff\xff\xff\xff"}}, type);
    Write(Path("whole"), {{"01234567"}, {"\xff\xff\xff\xff\xff\xff\xff\xff"}}, type);
    ASSERT_THAT(MergeDatasets({Path("in/a"), Path("in/b")}, Path("out"), fs_, Always), IsOk());
    ExpectSameFiles(Path("out"), Path("whole"));
  }
}

TEST_F(MergeDatasetsTest, ModesAreMerged) {
  Write(Path("in/a"), {{"aa", "bb"}}, TokenType::kU16, int8_t{1});
  Write(Path("in/b"), {{"cc"}}, TokenType::kU16, int8_t{0});
  ASSERT_THAT(MergeDatasets({Path("in/a"), Path("in/b")}, Path("out"), fs_, Always), IsOk());
  const auto merged = IndexedDataset::Open(Path("out"));
  ASSERT_THAT(merged, IsOk());
  ASSERT_TRUE(merged->has_modes());
  EXPECT_EQ(merged->SequenceMode(0), 1);
  EXPECT_EQ(merged->SequenceMode(1), 1);
  EXPECT_EQ(merged->SequenceMode(2), 0);
}

TEST_F(MergeDatasetsTest, DatasetsOfDifferentKindsAreRefused) {
  Write(Path("in/a"), {{"aaaa"}});
  Write(Path("in/b"), {{"bbbb"}}, TokenType::kI32);
  Write(Path("in/c"), {{"cc"}}, TokenType::kU16, int8_t{1});
  EXPECT_THAT(
      MergeDatasets({Path("in/a"), Path("in/b")}, Path("out"), fs_, Always),
      StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("u16"), HasSubstr("i32"))));
  EXPECT_THAT(MergeDatasets({Path("in/a"), Path("in/c")}, Path("out"), fs_, Always),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("in/c' has modes")));
  EXPECT_EQ(File(Path("out.bin")), "none");
  EXPECT_EQ(File(Path("out.bin.partial")), "none");
}

TEST_F(MergeDatasetsTest, AnUnfinishedDatasetIsAnError) {
  Write(Path("in/a"), {{"aa"}});
  ASSERT_THAT(WriteFileAtomically(fs_, Path("in/notes.txt"), "x"), IsOk());
  EXPECT_THAT(FindDatasets(fs_, Path("in")), IsOkAndHolds(ElementsAre(Path("in/a"))));
  ASSERT_THAT(WriteFileAtomically(fs_, Path("in/b.bin"), "x"), IsOk());
  EXPECT_THAT(FindDatasets(fs_, Path("in")),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("b.idx")));
  EXPECT_THAT(FindDatasets(fs_, folder_), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(MergeDatasetsTest, TokensThatBelongToNoSequenceAreRefused) {
  Write(Path("in/a"), {{"aa"}});
  Write(Path("in/b"), {{"bb"}});
  ASSERT_THAT(WriteFileAtomically(fs_, Path("in/b.bin"), "bbxx"), IsOk());
  EXPECT_THAT(MergeDatasets({Path("in/a"), Path("in/b")}, Path("out"), fs_, Always),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("in/b.bin' has 4 bytes"), HasSubstr("no sequence"))));
  EXPECT_EQ(File(Path("out.bin")), "none");
}

TEST_F(MergeDatasetsTest, AnInterruptOrAFullDiskLeavesNothing) {
  Write(Path("in/a"), {{"aa"}});
  EXPECT_THAT(
      MergeDatasets({Path("in/a")}, Path("out"), fs_, [](const MergeReport&) { return false; }),
      StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(File(Path("out.bin.partial")), "none");
  FaultFileSystem faults(&fs_);
  ASSERT_THAT(MergeDatasets({Path("in/a")}, Path("counted"), faults, Always), IsOk());
  const int operations = faults.operation_count();
  for (int i = 0; i < operations; ++i) {
    faults.FailAt(i, ENOSPC, /*lasting=*/true);
    EXPECT_THAT(MergeDatasets({Path("in/a")}, Path("out"), faults, Always),
                StatusIs(absl::StatusCode::kResourceExhausted))
        << i;
    EXPECT_EQ(File(Path("out.bin.partial")), "none") << i;
    // The last fault hits the sync of the directory, after the rename.
    if (i + 1 == operations) break;
    EXPECT_EQ(File(Path("out.idx")), "none") << i;
  }
}

}  // namespace
}  // namespace megatron
