#include "megatron/data/indexed/indexed_dataset_index.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/little_endian.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

// The fields of an index file; Bytes() writes them down, valid or not.
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

TEST(ParseIndexTest, PartsAreFound) {
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

TEST(ParseIndexTest, OneMoreBytePerSequenceIsItsMode) {
  Fields fields;
  fields.tail = "abc";
  const std::string bytes = fields.Bytes();
  const absl::StatusOr<ParsedIndex> index = ParseIndex(bytes, kBinSize);
  ASSERT_THAT(index, IsOk());
  ASSERT_NE(index->modes, nullptr);
  EXPECT_EQ(absl::string_view(index->modes, 3), "abc");
}

TEST(ParseIndexTest, AnIndexWithoutSequencesIsValid) {
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
    // The copy has exactly the right size, so that the address sanitizer sees any read past its
    // end.
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

TEST(ParseIndexTest, FilesThatAreNoIndexAreErrors) {
  Fields fields;
  fields.magic[2] = 'X';
  EXPECT_THAT(ErrorOf(fields), IsDataLossAt(0));
  EXPECT_THAT(ParseIndex("", 0), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(ParseIndex("some text", 0),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no index")));
}

TEST(ParseIndexTest, AnotherVersionIsAnError) {
  Fields fields;
  fields.version = 2;
  EXPECT_THAT(ErrorOf(fields), IsDataLossAt(9));
}

TEST(ParseIndexTest, UnknownAndFloatingTypesAreErrors) {
  for (const int type : {0, 6, 7, 9, 255}) {
    Fields fields;
    fields.type = static_cast<uint8_t>(type);
    EXPECT_THAT(ErrorOf(fields), IsDataLossAt(17)) << type;
  }
}

TEST(ParseIndexTest, CountsThatWouldOverflowAreErrors) {
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

TEST(ParseIndexTest, ADocumentCountOfZeroIsAnError) {
  Fields fields;
  fields.document_count = 0;
  EXPECT_THAT(ErrorOf(fields), IsDataLossAt(26));
}

TEST(ParseIndexTest, TrailingBytesAreErrors) {
  Fields fields;
  fields.tail = "ab";
  EXPECT_THAT(ErrorOf(fields), IsDataLossAt(34 + 36 + 24));
}

TEST(ParseIndexTest, NegativeLengthsAreErrors) {
  Fields fields;
  fields.lengths[1] = -1;
  EXPECT_THAT(ErrorOf(fields), IsDataLossAt(34 + 4));
}

TEST(ParseIndexTest, SequencesOutsideTheTokensAreErrors) {
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

}  // namespace
}  // namespace megatron
