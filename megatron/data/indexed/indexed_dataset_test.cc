#include "megatron/data/indexed/indexed_dataset.h"

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/crc32c.h"
#include "megatron/base/file_system.h"
#include "megatron/data/indexed/indexed_dataset_writer.h"
#include "megatron/data/little_endian.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::vector<int32_t> ReadAll(const TokenSequences& sequences, int64_t i) {
  std::vector<int32_t> tokens(sequences.SequenceLength(i));
  EXPECT_THAT(sequences.ReadTokens(i, 0, absl::MakeSpan(tokens)), IsOk());
  return tokens;
}

class IndexedDatasetTest : public testing::Test {
 protected:
  std::string Write(TokenType type, const std::vector<std::vector<int32_t>>& documents) {
    const std::string prefix = testing::TempDir() + "/" +
                               testing::UnitTest::GetInstance()->current_test_info()->name() +
                               std::string(TokenTypeName(type));
    auto writer = IndexedDatasetWriter::Create(PosixFileSystem(), prefix, type);
    EXPECT_THAT(writer, IsOk());
    for (const auto& document : documents) EXPECT_THAT((*writer)->AddDocument(document), IsOk());
    EXPECT_THAT((*writer)->Finalize(), IsOk());
    return prefix;
  }
};

TEST_F(IndexedDatasetTest, WrittenTokensAreReadBackForEveryType) {
  for (const TokenType type : {TokenType::kU8, TokenType::kI8, TokenType::kI16, TokenType::kI32,
                               TokenType::kI64, TokenType::kU16}) {
    const absl::StatusOr<IndexedDataset> dataset =
        IndexedDataset::Open(Write(type, {{5, 6, 127}, {}, {7}}));
    ASSERT_THAT(dataset, IsOk()) << TokenTypeName(type);
    EXPECT_EQ(dataset->token_type(), type);
    EXPECT_EQ(dataset->num_documents(), 3);
    EXPECT_EQ(dataset->num_sequences(), 2);
    EXPECT_EQ(dataset->num_tokens(), 4);
    EXPECT_THAT(ReadAll(*dataset, 0), ElementsAre(5, 6, 127));
    EXPECT_THAT(ReadAll(*dataset, 1), ElementsAre(7));
    EXPECT_THAT(dataset->DocumentSequences(0), Pair(0, 1));
    EXPECT_THAT(dataset->DocumentSequences(1), Pair(1, 1));
    EXPECT_THAT(dataset->DocumentSequences(2), Pair(1, 2));
    EXPECT_EQ(dataset->SequenceBytes(0).size(), 3u * TokenSize(type));
  }
}

TEST_F(IndexedDatasetTest, PiecesOfASequenceAreRead) {
  const absl::StatusOr<IndexedDataset> dataset =
      IndexedDataset::Open(Write(TokenType::kU16, {{1}, {2, 3, 4, 5}}));
  ASSERT_THAT(dataset, IsOk());
  std::vector<int32_t> piece(2);
  ASSERT_THAT(dataset->ReadTokens(1, 1, absl::MakeSpan(piece)), IsOk());
  EXPECT_THAT(piece, ElementsAre(3, 4));
}

TEST_F(IndexedDatasetTest, MappingAndSystemCallsReadTheSameTokens) {
  // The sequence is longer than one read.
  std::vector<int32_t> sequence(100000);
  for (size_t i = 0; i < sequence.size(); ++i) sequence[i] = static_cast<int32_t>(i % 60000);
  for (const TokenType type : {TokenType::kU16, TokenType::kI32, TokenType::kI64}) {
    const std::string prefix = Write(type, {{1, 2, 3}, sequence});
    const absl::StatusOr<IndexedDataset> mapped = IndexedDataset::Open(prefix);
    const absl::StatusOr<IndexedDataset> read =
        IndexedDataset::Open(prefix, {/*mmap_bin_files=*/false});
    ASSERT_THAT(mapped, IsOk());
    ASSERT_THAT(read, IsOk());
    EXPECT_EQ(read->num_tokens(), mapped->num_tokens());
    EXPECT_EQ(ReadAll(*read, 0), ReadAll(*mapped, 0));
    EXPECT_EQ(ReadAll(*read, 1), sequence);
    std::vector<int32_t> piece(2);
    ASSERT_THAT(read->ReadTokens(1, 70001, absl::MakeSpan(piece)), IsOk());
    EXPECT_THAT(piece, ElementsAre(10001, 10002));
    EXPECT_EQ(*read->ContentFingerprint(), *mapped->ContentFingerprint());
  }
}

TEST_F(IndexedDatasetTest, TruncatingAnOpenFileIsAnErrorIfItIsNotMapped) {
  const std::string prefix = Write(TokenType::kU16, {{1, 2, 3}});
  const absl::StatusOr<IndexedDataset> dataset =
      IndexedDataset::Open(prefix, {/*mmap_bin_files=*/false});
  ASSERT_THAT(dataset, IsOk());
  std::ofstream(prefix + ".bin", std::ios::binary | std::ios::trunc).put('x');
  std::vector<int32_t> tokens(3);
  const absl::Status status = dataset->ReadTokens(0, 0, absl::MakeSpan(tokens));
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(prefix));
  EXPECT_FALSE(dataset->ContentFingerprint().ok());
}

TEST_F(IndexedDatasetTest, SequencesOfMultimodalDatasetsHaveModes) {
  const std::string prefix = Write(TokenType::kU16, {{1}, {2, 3}});
  std::ofstream(prefix + ".idx", std::ios::binary | std::ios::app).write("\x00\xff", 2);
  const absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(prefix);
  ASSERT_THAT(dataset, IsOk());
  ASSERT_TRUE(dataset->has_modes());
  EXPECT_EQ(dataset->SequenceMode(0), 0);
  EXPECT_EQ(dataset->SequenceMode(1), -1);
}

TEST_F(IndexedDatasetTest, UnsignedTokensAreReadAsUnsigned) {
  const absl::StatusOr<IndexedDataset> dataset =
      IndexedDataset::Open(Write(TokenType::kU16, {{65535, 32768}}));
  ASSERT_THAT(dataset, IsOk());
  EXPECT_THAT(ReadAll(*dataset, 0), ElementsAre(65535, 32768));
}

TEST_F(IndexedDatasetTest, ATokenBeyond32BitsIsReadAsMinusOne) {
  const std::string prefix = Write(TokenType::kI64, {{5}});
  std::ofstream(prefix + ".bin", std::ios::binary).write("\x05\0\0\0\x01\0\0\0", 8);
  const absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(prefix);
  ASSERT_THAT(dataset, IsOk());
  EXPECT_THAT(ReadAll(*dataset, 0), ElementsAre(-1));
}

TEST_F(IndexedDatasetTest, VerifyTokensNamesTheFirstTokenOutsideTheVocabulary) {
  const absl::StatusOr<IndexedDataset> dataset =
      IndexedDataset::Open(Write(TokenType::kI32, {{1, 2}, {3, -4}}));
  ASSERT_THAT(dataset, IsOk());
  EXPECT_THAT(dataset->VerifyTokens(4),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("sequence 1, position 1"), HasSubstr("-4"))));
  EXPECT_THAT(dataset->VerifyTokens(3),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("sequence 1, position 0")));
}

// Returns the fingerprint after replacing `byte` of the .bin file.
uint32_t FingerprintWithOtherByte(const std::string& prefix, int64_t byte) {
  std::fstream bin(prefix + ".bin", std::ios::binary | std::ios::in | std::ios::out);
  const char old = static_cast<char>(bin.seekg(byte).get());
  bin.seekp(byte).put(static_cast<char>(old ^ 1)).flush();
  const absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(prefix);
  EXPECT_THAT(dataset, IsOk());
  const uint32_t fingerprint = *dataset->ContentFingerprint();
  bin.seekp(byte).put(old).flush();
  return fingerprint;
}

TEST_F(IndexedDatasetTest, TheFingerprintOfASmallDatasetIsTheChecksumOfBothFiles) {
  const std::string prefix = Write(TokenType::kU16, {{1, 2, 3}, {4}});
  const absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(prefix);
  ASSERT_THAT(dataset, IsOk());
  const absl::StatusOr<std::string> idx = ReadFileToString(PosixFileSystem(), prefix + ".idx");
  ASSERT_THAT(idx, IsOk());
  const std::string bin("\x01\0\x02\0\x03\0\x04\0", 8);
  const uint32_t fingerprint = *dataset->ContentFingerprint();
  EXPECT_EQ(fingerprint, Crc32c(*idx + bin));
  EXPECT_EQ(*dataset->DescribeContents(), absl::StrFormat("4 tokens, crc32c %08x", fingerprint));
  for (int64_t byte = 0; byte < 8; ++byte)
    EXPECT_NE(FingerprintWithOtherByte(prefix, byte), fingerprint);
}

TEST_F(IndexedDatasetTest, TheFingerprintCoversTheIndex) {
  const auto fingerprint = [&](const std::vector<std::vector<int32_t>>& documents) {
    return *IndexedDataset::Open(Write(TokenType::kU16, documents))->ContentFingerprint();
  };
  EXPECT_NE(fingerprint({{1, 2, 3}, {4}}), fingerprint({{1, 2}, {3, 4}}));
}

TEST_F(IndexedDatasetTest, TheFingerprintOfALargeDatasetSamplesItFromEndToEnd) {
  constexpr int64_t kBlock = 4096, kLast = 255;
  // Sampled blocks and gaps of the same length alternate.
  constexpr int64_t kSize = kBlock * (2 * kLast + 1);
  const std::string prefix = Write(TokenType::kU8, {std::vector<int32_t>(kSize, 7)});
  const uint32_t fingerprint = *IndexedDataset::Open(prefix)->ContentFingerprint();
  for (const int64_t block : {int64_t{0}, int64_t{100}, kLast}) {
    const int64_t begin = 2 * kBlock * block;
    EXPECT_NE(FingerprintWithOtherByte(prefix, begin), fingerprint) << block;
    EXPECT_NE(FingerprintWithOtherByte(prefix, begin + kBlock - 1), fingerprint) << block;
  }
  EXPECT_EQ(FingerprintWithOtherByte(prefix, kBlock), fingerprint);
  EXPECT_EQ(FingerprintWithOtherByte(prefix, kSize - kBlock - 1), fingerprint);
}

TEST_F(IndexedDatasetTest, EitherFilesNameOpensTheDataset) {
  const std::string prefix = Write(TokenType::kU16, {{1, 2, 3}});
  for (const absl::string_view suffix : {"", ".idx", ".bin"}) {
    const absl::StatusOr<IndexedDataset> dataset =
        IndexedDataset::Open(absl::StrCat(prefix, suffix));
    ASSERT_THAT(dataset, IsOk());
    EXPECT_EQ(dataset->prefix(), prefix);
    EXPECT_THAT(ReadAll(*dataset, 0), ElementsAre(1, 2, 3));
  }
}

TEST_F(IndexedDatasetTest, ErrorsNameMissingFiles) {
  EXPECT_THAT(IndexedDataset::Open("/nowhere/x"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/x.idx")));
}

TEST_F(IndexedDatasetTest, ATruncatedBinFileIsAnError) {
  const std::string prefix = Write(TokenType::kU16, {{1, 2, 3}});
  std::ofstream(prefix + ".bin", std::ios::binary) << "12345";
  EXPECT_THAT(IndexedDataset::Open(prefix),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr(prefix + ".idx"), HasSubstr("5 bytes"))));
}

}  // namespace
}  // namespace megatron
