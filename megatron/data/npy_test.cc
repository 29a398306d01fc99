#include "megatron/data/npy.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Makes a file of version `major` with any text as its header.
std::string File(const std::string& text, const std::string& data, int major = 1) {
  std::string file("\x93NUMPY");
  file.push_back(static_cast<char>(major));
  file.push_back(0);
  file.push_back(static_cast<char>(text.size() & 0xff));
  file.push_back(static_cast<char>(text.size() >> 8));
  if (major > 1) file.append(2, '\0');
  return file + text + data;
}

auto IsRefused() { return StatusIs(absl::StatusCode::kDataLoss); }

TEST(NpyTest, HeadersAreWrittenAsNumpyWritesThem) {
  // numpy 1.24 writes this header for numpy.zeros(5, dtype="<i4").
  const std::string text = absl::StrCat("{'descr': '<i4', 'fortran_order': False, 'shape': (5,), }",
                                        std::string(60, ' '), "\n");
  EXPECT_EQ(NpyHeader("<i4", {5}), absl::string_view(File(text, "")));
  EXPECT_EQ(NpyHeader("<i4", {5}).size(), 128u);
}

TEST(NpyTest, WrittenArraysAreReadBack) {
  const std::vector<std::vector<int64_t>> shapes = {{},     {0},          {3},
                                                    {2, 5}, {1, 1, 1, 7}, {1 << 20, 0}};
  for (const std::vector<int64_t>& shape : shapes) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    for (const std::string type : {"<i4", "<u2", "<f8", "|b1"}) {
      const std::string header = NpyHeader(type, shape);
      EXPECT_EQ(header.size() % 64, 0u);
      const std::string file = header + std::string(count * (type[2] - '0'), 'x');
      const absl::StatusOr<NpyArray> array = ParseNpy(file);
      ASSERT_THAT(array, IsOk());
      EXPECT_EQ(array->type, type);
      EXPECT_EQ(array->shape, shape);
      EXPECT_EQ(array->data.data(), file.data() + header.size());
      EXPECT_EQ(array->data.size(), file.size() - header.size());
    }
  }
}

TEST(NpyTest, EveryVersionAndSpellingOfTheHeaderIsRead) {
  for (const int version : {1, 2, 3}) {
    const std::string file =
        File("{\"shape\":(2 ,),'fortran_order' : False,'descr':'<u4'}", "12345678", version);
    const absl::StatusOr<NpyArray> array = ParseNpy(file);
    ASSERT_THAT(array, IsOk()) << version;
    EXPECT_EQ(array->type, "<u4");
    EXPECT_THAT(array->shape, ElementsAre(2));
    EXPECT_EQ(array->data, "12345678");
  }
  const absl::StatusOr<NpyArray> number =
      ParseNpy(File("{'descr': '<u2', 'fortran_order': False, 'shape': (), }\n", "ab"));
  ASSERT_THAT(number, IsOk());
  EXPECT_THAT(number->shape, IsEmpty());
}

TEST(NpyTest, UnsupportedAndInvalidFilesAreRefused) {
  const std::string good = "{'descr': '<u2', 'fortran_order': False, 'shape': (1,), }";
  ASSERT_THAT(ParseNpy(File(good, "ab")), IsOk());
  for (const std::string& file : std::vector<std::string>{
           "",
           "PK\x03\x04",
           File(good, "a"),
           File(good, "abc"),
           File(good, "ab", 0),
           File(good, "ab", 4),
           File(good + "x", "ab"),
           File("", ""),
           File("{}", ""),
           File("{'descr': '>u2', 'fortran_order': False, 'shape': (1,), }", "ab"),
           File("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "ab"),
           File("{'descr': '<u3', 'fortran_order': False, 'shape': (1,), }", "abc"),
           File("{'descr': '<u2', 'fortran_order': True, 'shape': (1,), }", "ab"),
           File("{'descr': '<u2', 'fortran_order': False, 'shape': (-1,), }", "ab"),
           File("{'descr': '<u2', 'fortran_order': False, 'shape': (1 1), }", "ab"),
           File("{'descr': '<u2', 'fortran_order': False, 'shape': 1, }", "ab"),
           File("{'descr': '<u2', 'descr': '<u2', 'shape': (1,), }", "ab"),
           File("{'descr': '<u2', 'other': False, 'shape': (1,), }", "ab"),
           File("{'descr' '<u2', 'fortran_order': False, 'shape': (1,), }", "ab"),
           File("{'descr': '<u2' 'fortran_order': False, 'shape': (1,), }", "ab"),
           File("{'descr': '<u2, 'fortran_order': False", "ab"),
           File("{descr: 1}", ""),
           File("{'descr': '<u2', 'fortran_order': False}", "ab"),
           // These products would wrap around to the size of the data.
           File("{'descr': '<u2', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
                ""),
           File(absl::StrCat("{'descr': '<u2', 'fortran_order': False, 'shape': (",
                             std::string(500, '9'), ",), }"),
                ""),
       }) {
    EXPECT_THAT(ParseNpy(file), IsRefused()) << file;
  }
  std::string many = "{'descr': '<u2', 'fortran_order': False, 'shape': (";
  for (int i = 0; i < 65; ++i) many += "1, ";
  EXPECT_THAT(ParseNpy(File(many + ")}", "ab")), IsRefused());
}

TEST(NpyTest, EveryTruncationIsRefused) {
  const std::string whole = NpyHeader("<i8", {2}) + std::string(16, 'x');
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::vector<char> cut(whole.begin(), whole.begin() + size);
    EXPECT_THAT(ParseNpy({cut.data(), cut.size()}), IsRefused()) << size;
  }
}

}  // namespace
}  // namespace megatron
