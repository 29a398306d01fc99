#include "megatron/data/indexed_dataset.h"

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
#include "megatron/data/indexed_dataset_writer.h"
#include "megatron/data/little_endian.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// The fields of an index file; Bytes() writes them down, true or not.
struct Fields {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t type = 8;
  uint64_t sequence_count = 3;
  uint64_t document_count = 3;
  std::vector<int32_t> lengths = {2, 0, 3};
  std::vector<int64_t> offsets = {0, 4, 4};
  std::vector<int64_t> documents = {0, 2, 3};
  std::string tail;

  std::string Bytes() const {
    std::string bytes = magic;
    AppendLittleEndian(version, &bytes);
    AppendLittleEndian(type, &bytes);
    AppendLittleEndian(sequence_count, &bytes);
    AppendLittleEndian(document_count, &bytes);
    for (const int32_t length : lengths) AppendLittleEndian(length, &bytes);
    for (const int64_t offset : offsets) AppendLittleEndian(offset, &bytes);
    for (const int64_t document : documents) AppendLittleEndian(document, &bytes);
    return bytes + tail;
  }
};

constexpr int64_t kBinSize = 10;

absl::Status ErrorOf(const Fields& fields) { return ParseIndex(fields.Bytes(), kBinSize).status(); }

auto IsDataLossAt(int64_t offset) {
  return StatusIs(absl::StatusCode::kDataLoss, HasSubstr(absl::StrCat("offset ", offset, ": ")));
}

std::vector<int32_t> ReadAll(const TokenSequences& sequences, int64_t i) {
  std::vector<int32_t> tokens(sequences.SequenceLength(i));
  EXPECT_THAT(sequences.ReadTokens(i, 0, absl::MakeSpan(tokens)), IsOk());
  return tokens;
}

TEST(ParseIndexTest, FindsTheParts) {
  const std::string bytes = Fields().Bytes();
  const absl::StatusOr<ParsedIndex> index = ParseIndex(bytes, kBinSize);
  ASSERT_THAT(index, IsOk());
  EXPECT_EQ(index->token_type, TokenType::kU16);
  EXPECT_EQ(index->num_sequences, 3);
  EXPECT_EQ(index->num_documents, 2);
  EXPECT_EQ(index->lengths - bytes.data(), 34);
  EXPECT_EQ(index->offsets - bytes.data(), 34 + 12);
  EXPECT_EQ(index->documents - bytes.data(), 34 + 36);
  EXPECT_EQ(index->modes, nullptr);
}

TEST(ParseIndexTest, AByteMorePerSequenceIsItsMode) {
  Fields fields;
  fields.tail = "abc";
  const std::string bytes = fields.Bytes();
  const absl::StatusOr<ParsedIndex> index = ParseIndex(bytes, kBinSize);
  ASSERT_THAT(index, IsOk());
  ASSERT_NE(index->modes, nullptr);
  EXPECT_EQ(absl::string_view(index->modes, 3), "abc");
}

TEST(ParseIndexTest, AnIndexOfNothingIsFine) {
  Fields fields;
  fields.sequence_count = 0;
  fields.document_count = 1;
  fields.lengths.clear();
  fields.offsets.clear();
  fields.documents = {0};
  EXPECT_THAT(ErrorOf(fields), IsOk());
}

TEST(ParseIndexTest, EveryTruncationIsAnError) {
  const std::string bytes = Fields().Bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    // A copy of the right size, so that the address sanitizer sees any read behind its end.
    const std::vector<char> cut(bytes.begin(), bytes.begin() + size);
    EXPECT_THAT(ParseIndex({cut.data(), cut.size()}, kBinSize),
                StatusIs(absl::StatusCode::kDataLoss))
        << "cut to " << size;
  }
}

TEST(ParseIndexTest, EveryChangedByteIsAnErrorOrHarmless) {
  const std::string bytes = Fields().Bytes();
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int change = 1; change < 256; ++change) {
      std::vector<char> changed(bytes.begin(), bytes.end());
      changed[at] = static_cast<char>(changed[at] ^ change);
      const absl::StatusOr<ParsedIndex> index =
          ParseIndex({changed.data(), changed.size()}, kBinSize);
      if (!index.ok()) continue;
      for (int64_t i = 0; i < index->num_sequences; ++i) {
        const int64_t length =
            LoadLittleEndian<int32_t>(index->lengths, i) * int64_t{TokenSize(index->token_type)};
        const int64_t offset = LoadLittleEndian<int64_t>(index->offsets, i);
        EXPECT_TRUE(0 <= offset && 0 <= length && offset + length <= kBinSize)
            << "byte " << at << " ^ " << change;
      }
    }
  }
}

TEST(ParseIndexTest, ForeignFilesAreTold) {
  Fields fields;
  fields.magic[2] = 'X';
  EXPECT_THAT(ErrorOf(fields), IsDataLossAt(0));
  EXPECT_THAT(ParseIndex("", 0), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(ParseIndex("some text", 0),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no index")));
}

TEST(ParseIndexTest, AnotherVersionIsTold) {
  Fields fields;
  fields.version = 2;
  EXPECT_THAT(ErrorOf(fields), IsDataLossAt(9));
}

TEST(ParseIndexTest, UnknownAndFloatingTypesAreTold) {
  for (const int type : {0, 6, 7, 9, 255}) {
    Fields fields;
    fields.type = static_cast<uint8_t>(type);
    EXPECT_THAT(ErrorOf(fields), IsDataLossAt(17)) << type;
  }
}

TEST(ParseIndexTest, CountsThatWouldOverflowAreTold) {
  for (const uint64_t count :
       {uint64_t{4}, uint64_t{1} << 32, ~uint64_t{0} / 12 + 1, ~uint64_t{0}}) {
    Fields fields;
    fields.sequence_count = count;
    EXPECT_THAT(ErrorOf(fields), StatusIs(absl::StatusCode::kDataLoss)) << count;
    fields = Fields();
    fields.document_count = count;
    EXPECT_THAT(ErrorOf(fields), IsDataLossAt(26)) << count;
  }
}

TEST(ParseIndexTest, ADocumentCountOfZeroIsTold) {
  Fields fields;
  fields.document_count = 0;
  EXPECT_THAT(ErrorOf(fields), IsDataLossAt(26));
}

TEST(ParseIndexTest, TrailingBytesAreTold) {
  Fields fields;
  fields.tail = "ab";
  EXPECT_THAT(ErrorOf(fields), IsDataLossAt(34 + 36 + 24));
}

TEST(ParseIndexTest, NegativeLengthsAreTold) {
  Fields fields;
  fields.lengths[1] = -1;
  EXPECT_THAT(ErrorOf(fields), IsDataLossAt(34 + 4));
}

TEST(ParseIndexTest, SequencesOutsideTheTokensAreTold) {
  for (const int64_t offset : {int64_t{-1}, int64_t{5}, int64_t{11}, INT64_MAX, INT64_MIN}) {
    Fields fields;
    fields.offsets[2] = offset;
    EXPECT_THAT(ErrorOf(fields), IsDataLossAt(34 + 12 + 16)) << offset;
  }
  Fields fields;
  fields.lengths[0] = INT32_MAX;
  EXPECT_THAT(ErrorOf(fields), IsDataLossAt(34 + 12));
}

TEST(ParseIndexTest, SequencesMayLeaveGapsButMustNotOverlap) {
  Fields fields;
  fields.lengths = {1, 0, 3};
  EXPECT_THAT(ErrorOf(fields), IsOk());
  fields.lengths = {2, 1, 2};
  EXPECT_THAT(ErrorOf(fields), IsDataLossAt(34 + 12 + 16));
}

TEST(ParseIndexTest, DocumentBoundariesMustRiseFromZeroToTheNumberOfSequences) {
  const auto error = [](std::vector<int64_t> documents) {
    Fields fields;
    fields.documents = std::move(documents);
    return ErrorOf(fields);
  };
  constexpr int64_t kDocuments = 34 + 36;
  EXPECT_THAT(error({1, 2, 3}), IsDataLossAt(kDocuments));
  EXPECT_THAT(error({-1, 2, 3}), IsDataLossAt(kDocuments));
  EXPECT_THAT(error({0, -1, 3}), IsDataLossAt(kDocuments + 8));
  EXPECT_THAT(error({0, 4, 3}), IsDataLossAt(kDocuments + 8));
  EXPECT_THAT(error({0, 3, 2}), IsDataLossAt(kDocuments + 16));
  EXPECT_THAT(error({0, 2, 2}), IsDataLossAt(kDocuments + 16));
  EXPECT_THAT(error({0, 2, INT64_MAX}), IsDataLossAt(kDocuments + 16));
  EXPECT_THAT(error({0, 0, 3}), IsOk());
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

TEST_F(IndexedDatasetTest, ReadsWhatWasWrittenInEveryType) {
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

TEST_F(IndexedDatasetTest, ReadsPiecesOfASequence) {
  const absl::StatusOr<IndexedDataset> dataset =
      IndexedDataset::Open(Write(TokenType::kU16, {{1}, {2, 3, 4, 5}}));
  ASSERT_THAT(dataset, IsOk());
  std::vector<int32_t> piece(2);
  ASSERT_THAT(dataset->ReadTokens(1, 1, absl::MakeSpan(piece)), IsOk());
  EXPECT_THAT(piece, ElementsAre(3, 4));
}

TEST_F(IndexedDatasetTest, ReadsTheSameByMappingAndBySystemCalls) {
  // Longer than what one call reads.
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

TEST_F(IndexedDatasetTest, AFileThatWasCutOffWhileOpenIsAnErrorWhereItIsNotMapped) {
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

TEST_F(IndexedDatasetTest, UnsignedTokensStayUnsigned) {
  const absl::StatusOr<IndexedDataset> dataset =
      IndexedDataset::Open(Write(TokenType::kU16, {{65535, 32768}}));
  ASSERT_THAT(dataset, IsOk());
  EXPECT_THAT(ReadAll(*dataset, 0), ElementsAre(65535, 32768));
}

TEST_F(IndexedDatasetTest, ATokenBeyond32BitsDoesNotTurnIntoAnother) {
  const std::string prefix = Write(TokenType::kI64, {{5}});
  std::ofstream(prefix + ".bin", std::ios::binary).write("\x05\0\0\0\x01\0\0\0", 8);
  const absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(prefix);
  ASSERT_THAT(dataset, IsOk());
  EXPECT_THAT(ReadAll(*dataset, 0), ElementsAre(-1));
}

TEST_F(IndexedDatasetTest, VerifyNamesTheFirstTokenOutsideTheVocabulary) {
  const absl::StatusOr<IndexedDataset> dataset =
      IndexedDataset::Open(Write(TokenType::kI32, {{1, 2}, {3, -4}}));
  ASSERT_THAT(dataset, IsOk());
  EXPECT_THAT(dataset->VerifyTokens(4),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("sequence 1, position 1"), HasSubstr("-4"))));
  EXPECT_THAT(dataset->VerifyTokens(3),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("sequence 1, position 0")));
}

// The fingerprint after `byte` of the .bin file was replaced.
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

TEST_F(IndexedDatasetTest, TheFingerprintSeesTheIndex) {
  const auto fingerprint = [&](const std::vector<std::vector<int32_t>>& documents) {
    return *IndexedDataset::Open(Write(TokenType::kU16, documents))->ContentFingerprint();
  };
  EXPECT_NE(fingerprint({{1, 2, 3}, {4}}), fingerprint({{1, 2}, {3, 4}}));
}

TEST_F(IndexedDatasetTest, TheFingerprintOfALargeDatasetSamplesItFromEndToEnd) {
  constexpr int64_t kBlock = 4096, kLast = 255;
  // Blocks of the sample and gaps of the same length take turns.
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

TEST_F(IndexedDatasetTest, EitherFileNamesTheDataset) {
  const std::string prefix = Write(TokenType::kU16, {{1, 2, 3}});
  for (const absl::string_view suffix : {"", ".idx", ".bin"}) {
    const absl::StatusOr<IndexedDataset> dataset =
        IndexedDataset::Open(absl::StrCat(prefix, suffix));
    ASSERT_THAT(dataset, IsOk());
    EXPECT_EQ(dataset->prefix(), prefix);
    EXPECT_THAT(ReadAll(*dataset, 0), ElementsAre(1, 2, 3));
  }
}

TEST_F(IndexedDatasetTest, MissingFilesAreNamed) {
  EXPECT_THAT(IndexedDataset::Open("/nowhere/x"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/x.idx")));
}

TEST_F(IndexedDatasetTest, ATruncatedBinFileIsTold) {
  const std::string prefix = Write(TokenType::kU16, {{1, 2, 3}});
  std::ofstream(prefix + ".bin", std::ios::binary) << "12345";
  EXPECT_THAT(IndexedDataset::Open(prefix),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr(prefix + ".idx"), HasSubstr("5 bytes"))));
}

}  // namespace
}  // namespace megatron
