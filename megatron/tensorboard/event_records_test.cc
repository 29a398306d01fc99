#include "megatron/tensorboard/event_records.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/crc32c.h"

namespace megatron::tensorboard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;

std::vector<std::string> Records(absl::string_view file) {
  std::vector<std::string> records;
  while (const auto record = TakeRecord(&file)) records.emplace_back(*record);
  return records;
}

// The bytes are from the tests of TensorBoard's data server, data/server/masked_crc.rs and
// tf_record.rs.
TEST(EventRecordsTest, AreTensorBoards) {
  std::string file;
  AppendRecord(
      "\x1a\x11"
      "CRC test, one two",
      &file);
  EXPECT_EQ(absl::BytesToHexString(absl::string_view(file).substr(file.size() - 4)), "8ad09457");
  file.clear();
  AppendRecord(std::string(24, 'x'), &file);
  EXPECT_EQ(absl::BytesToHexString(absl::string_view(file).substr(0, 12)),
            "1800000000000000"
            "a37f4b22");
}

TEST(EventRecordsTest, AreReadBack) {
  std::string file;
  for (const char* text : {"one", "", "three"}) AppendRecord(text, &file);
  EXPECT_THAT(Records(file), ElementsAre("one", "", "three"));
}

TEST(EventRecordsTest, ATornRecordIsNotTaken) {
  std::string file;
  AppendRecord("one", &file);
  const size_t whole = file.size();
  AppendRecord("two", &file);
  for (size_t size = 0; size < file.size(); ++size) {
    absl::string_view bytes = absl::string_view(file).substr(0, size);
    if (size >= whole) {
      EXPECT_THAT(TakeRecord(&bytes), Optional(absl::string_view("one")));
      EXPECT_EQ(bytes.size(), size - whole);
    }
    EXPECT_FALSE(TakeRecord(&bytes).has_value()) << size;
  }
}

TEST(EventRecordsTest, ADamagedRecordIsNotTaken) {
  std::string file;
  AppendRecord("twelve bytes", &file);
  for (char& byte : file) {
    byte ^= 4;
    EXPECT_THAT(Records(file), IsEmpty()) << &byte - file.data();
    byte ^= 4;
  }
}

TEST(EventRecordsTest, AnImpossibleLengthIsNotTaken) {
  std::string file(8, '\xff');
  const uint32_t crc = Crc32c(file);
  const uint32_t masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  for (int i = 0; i < 4; ++i) file.push_back(static_cast<char>(masked >> (8 * i)));
  file.append(100, '\0');
  EXPECT_THAT(Records(file), IsEmpty());
}

}  // namespace
}  // namespace megatron::tensorboard
