#include "megatron/data/indexed/indexed_dataset_writer.h"

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/fault_file_system.h"
#include "megatron/base/file_system.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/data/indexed/indexed_dataset.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Status WriteDataset(FileSystem& fs, const std::string& prefix,
                          const std::vector<std::vector<int32_t>>& documents) {
  auto writer = IndexedDatasetWriter::Create(fs, prefix, TokenType::kU16);
  if (!writer.ok()) return writer.status();
  for (const auto& document : documents) {
    const absl::Status status = (*writer)->AddDocument(document);
    if (!status.ok()) return status;
  }
  return (*writer)->Finalize();
}

std::string Contents(FileSystem& fs, const std::string& path) {
  absl::StatusOr<std::string> contents = ReadFileToString(fs, path);
  return contents.ok() ? *contents : absl::StrCat("(", contents.status().ToString(), ")");
}

// Megatron's own builder writes these bytes for these documents; they are derived field by field
// from the description of its format.
TEST(IndexedDatasetWriterTest, FilesHaveTheBytesThatMegatronWrites) {
  MemoryFileSystem fs;
  ASSERT_THAT(WriteDataset(fs, "x", {{1, 2, 3}, {}, {258, 65535}}), IsOk());
  EXPECT_EQ(Contents(fs, "x.bin"), std::string("\x01\0\x02\0\x03\0\x02\x01\xff\xff", 10));
  const std::string expected =
      std::string("MMIDIDX\0\0", 9) +                          // magic
      std::string("\x01\0\0\0\0\0\0\0", 8) +                   // version
      "\x08" +                                                 // u16
      std::string("\x02\0\0\0\0\0\0\0", 8) +                   // sequences
      std::string("\x04\0\0\0\0\0\0\0", 8) +                   // documents + 1
      std::string("\x03\0\0\0\x02\0\0\0", 8) +                 // lengths
      std::string("\0\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0", 16) +  // byte offsets
      std::string("\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0", 16) +  // document bounds
      std::string("\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0", 16);
  EXPECT_EQ(Contents(fs, "x.idx"), expected);
}

TEST(IndexedDatasetWriterTest, NoOtherFilesAreLeft) {
  MemoryFileSystem fs;
  ASSERT_THAT(fs.CreateDirs("d"), IsOk());
  ASSERT_THAT(WriteDataset(fs, "d/x", {{1}}), IsOk());
  const absl::StatusOr<std::vector<std::string>> names = fs.List("d");
  ASSERT_THAT(names, IsOk());
  EXPECT_THAT(*names, ElementsAre("x.bin", "x.idx"));
}

TEST(IndexedDatasetWriterTest, ADocumentMayHaveSeveralSequences) {
  const std::string prefix = testing::TempDir() + "/sentences";
  auto writer = IndexedDatasetWriter::Create(PosixFileSystem(), prefix, TokenType::kI32);
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT((*writer)->AddSequence({1, 2}), IsOk());
  ASSERT_THAT((*writer)->AddSequence({3}), IsOk());
  (*writer)->EndDocument();
  ASSERT_THAT((*writer)->Finalize(), IsOk());
  const absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(prefix);
  ASSERT_THAT(dataset, IsOk());
  EXPECT_EQ(dataset->num_documents(), 1);
  EXPECT_EQ(dataset->num_sequences(), 2);
}

TEST(IndexedDatasetWriterTest, FilesLargerThanTheBufferAreComplete) {
  const std::string prefix = testing::TempDir() + "/large";
  auto writer = IndexedDatasetWriter::Create(PosixFileSystem(), prefix, TokenType::kU16);
  ASSERT_THAT(writer, IsOk());
  std::vector<int32_t> tokens(1001);
  constexpr int kDocuments = 150000;  // 1.8 MB of index
  for (int i = 0; i < kDocuments; ++i) {
    const int length = i % 10;
    for (int k = 0; k < length; ++k) tokens[k] = (i + k) % 65536;
    ASSERT_THAT((*writer)->AddSequence(absl::MakeConstSpan(tokens).first(length)), IsOk());
    (*writer)->EndDocument();
  }
  ASSERT_THAT((*writer)->Finalize(), IsOk());
  const absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(prefix);
  ASSERT_THAT(dataset, IsOk());
  ASSERT_EQ(dataset->num_sequences(), kDocuments);
  for (int i = 0; i < kDocuments; ++i) {
    std::vector<int32_t> read(dataset->SequenceLength(i));
    ASSERT_EQ(static_cast<int>(read.size()), i % 10);
    ASSERT_TRUE(dataset->ReadTokens(i, 0, absl::MakeSpan(read)).ok());
    for (size_t k = 0; k < read.size(); ++k) ASSERT_EQ(read[k], static_cast<int>((i + k) % 65536));
  }
}

TEST(IndexedDatasetWriterTest, TokensThatDoNotFitAreRefusedAndNothingIsAdded) {
  MemoryFileSystem fs;
  auto writer = IndexedDatasetWriter::Create(fs, "x", TokenType::kU16);
  ASSERT_THAT(writer, IsOk());
  EXPECT_THAT((*writer)->AddDocument({1, 65536}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("65536")));
  EXPECT_THAT((*writer)->AddDocument({-1}), StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_THAT((*writer)->AddDocument({7}), IsOk());
  ASSERT_THAT((*writer)->Finalize(), IsOk());
  EXPECT_EQ(Contents(fs, "x.bin"), std::string("\x07\0", 2));
}

TEST(IndexedDatasetWriterTest, WithoutFinalizeNothingIsLeftAndTheOldDatasetIsKept) {
  MemoryFileSystem fs;
  ASSERT_THAT(fs.CreateDirs("d"), IsOk());
  ASSERT_THAT(WriteDataset(fs, "d/x", {{1}}), IsOk());
  const std::string old_index = Contents(fs, "d/x.idx");
  {
    auto writer = IndexedDatasetWriter::Create(fs, "d/x", TokenType::kU16);
    ASSERT_THAT(writer, IsOk());
    ASSERT_THAT((*writer)->AddDocument({2, 3}), IsOk());
  }
  const absl::StatusOr<std::vector<std::string>> names = fs.List("d");
  ASSERT_THAT(names, IsOk());
  EXPECT_THAT(*names, ElementsAre("x.bin", "x.idx"));
  EXPECT_EQ(Contents(fs, "d/x.idx"), old_index);
}

// A crash at any instant leaves the old dataset, or the new one, or no .idx and hence no dataset,
// but never a mixture.
TEST(IndexedDatasetWriterTest, ACrashAtAnyInstantLeavesTheOldDatasetTheNewOneOrNone) {
  MemoryFileSystem fs;
  ASSERT_THAT(fs.CreateDirs("d"), IsOk());
  ASSERT_THAT(WriteDataset(fs, "d/x", {{1, 2}}), IsOk());
  ASSERT_THAT(fs.SyncDir("."), IsOk());
  const std::string old_index = Contents(fs, "d/x.idx"), old_bin = Contents(fs, "d/x.bin");
  const int begin = fs.operation_count();
  ASSERT_THAT(WriteDataset(fs, "d/x", {{3}, {4}}), IsOk());
  const std::string new_index = Contents(fs, "d/x.idx"), new_bin = Contents(fs, "d/x.bin");
  for (const CrashModel model : {CrashModel::kKillProcess, CrashModel::kLoseUnsynced,
                                 CrashModel::kTearUnsynced, CrashModel::kShuffleNames}) {
    for (int n = begin; n <= fs.operation_count(); ++n) {
      for (uint64_t seed = 0; seed < 8; ++seed) {
        const std::unique_ptr<MemoryFileSystem> image = fs.CrashImage(n, model, seed);
        SCOPED_TRACE(
            absl::StrCat("model ", static_cast<int>(model), " after ", fs.Describe(n - 1)));
        if (absl::IsNotFound(image->Stat("d/x.idx").status())) {
          EXPECT_NE(n, fs.operation_count());
          continue;
        }
        const std::string index = Contents(*image, "d/x.idx");
        EXPECT_THAT(index, AnyOf(old_index, new_index));
        EXPECT_EQ(Contents(*image, "d/x.bin"), index == old_index ? old_bin : new_bin);
      }
    }
  }
}

TEST(IndexedDatasetWriterTest, PreparedDataIsDurableButNotVisible) {
  MemoryFileSystem fs;
  ASSERT_THAT(fs.CreateDirs("d"), IsOk());
  ASSERT_THAT(WriteDataset(fs, "d/x", {{1}}), IsOk());
  const std::string old_index = Contents(fs, "d/x.idx");
  auto writer = IndexedDatasetWriter::Create(fs, "d/x", TokenType::kU16);
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT((*writer)->AddDocument({2, 3}), IsOk());
  ASSERT_THAT((*writer)->Prepare(), IsOk());
  EXPECT_EQ(Contents(fs, "d/x.idx"), old_index);
  EXPECT_EQ(Contents(fs, "d/x.bin.partial"), std::string("\x02\0\x03\0", 4));
  ASSERT_THAT((*writer)->Finalize(), IsOk());
  EXPECT_EQ(Contents(fs, "d/x.bin"), std::string("\x02\0\x03\0", 4));
}

TEST(IndexedDatasetWriterTest, ModesAreTheLastPartOfTheIndex) {
  MemoryFileSystem fs;
  auto writer = IndexedDatasetWriter::Create(fs, "x", TokenType::kU16);
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT((*writer)->AddStoredSequence("abcd", int8_t{1}), IsOk());
  ASSERT_THAT((*writer)->AddStoredSequence("ef", int8_t{-1}), IsOk());
  (*writer)->EndDocument();
  ASSERT_THAT((*writer)->Finalize(), IsOk());
  EXPECT_EQ(Contents(fs, "x.bin"), "abcdef");
  const std::string index = Contents(fs, "x.idx");
  ASSERT_EQ(index.size(), 34u + 2 * 4 + 2 * 8 + 2 * 8 + 2);
  EXPECT_EQ(index.substr(index.size() - 2), "\x01\xff");
}

TEST(IndexedDatasetWriterTest, OnlyRegularFilesAreReplaced) {
  FileSystem& fs = PosixFileSystem();
  const std::string folder = ::testing::TempDir() + "/odd";
  ASSERT_THAT(fs.RemoveTree(folder), IsOk());
  for (const char* ending : {".bin", ".idx"}) {
    const std::string prefix = absl::StrCat(folder, "/x");
    ASSERT_THAT(fs.CreateDirs(prefix + ending), IsOk());
    EXPECT_THAT(WriteDataset(fs, prefix, {{1}}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(prefix + ending)));
    EXPECT_EQ(fs.List(folder)->size(), 1u);
    ASSERT_THAT(fs.Remove(prefix + ending), IsOk());
    ASSERT_EQ(symlink("elsewhere", (prefix + ending).c_str()), 0);
    EXPECT_THAT(WriteDataset(fs, prefix, {{1}}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(prefix + ending)));
    EXPECT_EQ(fs.List(folder)->size(), 1u);
    ASSERT_THAT(fs.Remove(prefix + ending), IsOk());
  }
}

// A fault at any operation leaves the old dataset, the new one, or, if the new tokens are already
// in place, none.
TEST(IndexedDatasetWriterTest, AFaultLeavesTheOldDatasetUnlessItsTokensWereReplaced) {
  MemoryFileSystem memory;
  ASSERT_THAT(memory.CreateDirs("d"), IsOk());
  FaultFileSystem fs(&memory);
  ASSERT_THAT(WriteDataset(fs, "d/x", {{1, 2}}), IsOk());
  const std::string old_index = Contents(memory, "d/x.idx"), old_bin = Contents(memory, "d/x.bin");
  fs.ClearFault();
  ASSERT_THAT(WriteDataset(fs, "d/x", {{3}, {4}}), IsOk());
  const int operations = fs.operation_count();
  const std::string new_bin = Contents(memory, "d/x.bin");
  int kept = 0;
  for (int i = 0; i < operations; ++i) {
    ASSERT_THAT(WriteDataset(memory, "d/x", {{1, 2}}), IsOk());
    fs.FailAt(i, EIO, /*lasting=*/false);
    const absl::Status status = WriteDataset(fs, "d/x", {{3}, {4}});
    SCOPED_TRACE(absl::StrCat(i, ": ", status.ToString()));
    EXPECT_THAT(memory.Stat("d/x.bin.partial"), StatusIs(absl::StatusCode::kNotFound));
    EXPECT_THAT(memory.Stat("d/x.idx.old.partial"), StatusIs(absl::StatusCode::kNotFound));
    if (Contents(memory, "d/x.bin") == old_bin) {
      EXPECT_EQ(Contents(memory, "d/x.idx"), old_index);
      ++kept;
    } else {
      EXPECT_EQ(Contents(memory, "d/x.bin"), new_bin);
    }
  }
  EXPECT_GT(kept, operations / 2);
}

TEST(IndexedDatasetWriterTest, ErrorsNameAMissingDirectory) {
  EXPECT_THAT(IndexedDatasetWriter::Create(PosixFileSystem(), "/nowhere/x", TokenType::kU16),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/x.bin.partial")));
}

}  // namespace
}  // namespace megatron
