#include "tools/interop/npy.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::HasSubstr;

std::string Write(const Tensor& tensor) {
  MemoryFileSystem fs;
  EXPECT_THAT(WriteNpy(fs, "/t.npy", tensor), IsOk());
  return *fs.MutableContents("/t.npy");
}

// The bytes that numpy.save writes for numpy.arange(6, dtype="<i4").reshape(2, 3).
TEST(NpyTest, WritesWhatNumpyWrites) {
  std::vector<int32_t> values = {0, 1, 2, 3, 4, 5};
  std::string expected("\x93NUMPY\x01\x00\x76\x00", 10);
  expected += "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }";
  expected.append(128 - 1 - expected.size(), ' ');
  expected += '\n';
  expected.append(reinterpret_cast<const char*>(values.data()), 24);
  EXPECT_EQ(Write(Tensor(values.data(), DType::kInt32, {2, 3})), expected);
}

TEST(NpyTest, NamesTypesAndShapesAsNumpyDoes) {
  std::vector<int64_t> memory(8);
  EXPECT_THAT(Write(Tensor(memory.data(), DType::kFloat32, {8})),
              HasSubstr("'descr': '<f4', 'fortran_order': False, 'shape': (8,), }"));
  EXPECT_THAT(Write(Tensor(memory.data(), DType::kFloat16, {1, 2, 3})),
              HasSubstr("'<f2', 'fortran_order': False, 'shape': (1, 2, 3), }"));
  EXPECT_THAT(Write(Tensor(memory.data(), DType::kInt64, {0, 4})), HasSubstr("'<i8'"));
  EXPECT_THAT(Write(Tensor(memory.data(), DType::kUInt8, {2})), HasSubstr("'|u1'"));
  EXPECT_THAT(Write(Tensor(memory.data(), DType::kUInt16, {2})), HasSubstr("'<u2'"));
}

TEST(NpyTest, HeadersAreMultiplesOf64Bytes) {
  std::vector<uint8_t> memory(1);
  for (int64_t columns : {1, 10, 100, 1000, 10000, 100000, 1000000}) {
    EXPECT_EQ(Write(Tensor(memory.data(), DType::kUInt8, {0, columns})).size() % 64, 0u) << columns;
  }
}

TEST(NpyTest, WritesBFloat16AsTheSameFloats) {
  std::vector<BFloat16> values = {ToBFloat16(1.5f), ToBFloat16(-0.1f)};
  const std::string written = Write(Tensor(values.data(), DType::kBFloat16, {2}));
  EXPECT_THAT(written, HasSubstr("'<f4'"));
  float floats[2];
  std::memcpy(floats, written.data() + written.size() - sizeof(floats), sizeof(floats));
  EXPECT_EQ(floats[0], 1.5f);
  EXPECT_EQ(floats[1], ToFloat(values[1]));
}

TEST(NpyTest, SaysWhereItCouldNotWrite) {
  MemoryFileSystem fs;
  float value = 0;
  EXPECT_THAT(WriteNpy(fs, "/absent/t.npy", Tensor(&value, DType::kFloat32, {1})).ToString(),
              HasSubstr("/absent"));
}

}  // namespace
}  // namespace megatron
