// Any bytes as a .safetensors file and as an index. What is accepted must hold what the format
// promises, and must be written back as something that reads the same.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/checkpoint/safetensors_header.h"
#include "megatron/checkpoint/safetensors_index.h"

namespace {

// Each tensor is in one shard, in order, and only a lone one is larger than allowed.
void TestShards(const std::vector<megatron::SafetensorsTensor>& tensors) {
  constexpr int64_t kMaxBytes = 8;
  const auto shards = megatron::PlanSafetensorsShards(tensors, kMaxBytes);
  size_t next = 0;
  for (const auto& shard : shards) {
    int64_t bytes = 0;
    for (const megatron::SafetensorsTensor& tensor : shard) {
      CHECK(tensor.name == tensors[next++].name);
      bytes += tensor.bytes();
      megatron::DType dtype;
      if (megatron::FromSafetensorsName(tensor.dtype, &dtype)) {
        CHECK(megatron::SafetensorsName(dtype) == tensor.dtype);
      }
    }
    CHECK(bytes <= kMaxBytes || shard.size() == 1);
  }
  CHECK_EQ(next, tensors.size());
  CHECK(!megatron::SafetensorsShardName(shards.size() - 1, shards.size()).empty());
}

void TestHeader(absl::string_view file) {
  auto header = megatron::ParseSafetensorsHeader(file);
  if (!header.ok()) return;
  int64_t end = 0;
  for (const megatron::SafetensorsTensor& tensor : header->tensors) {
    CHECK_EQ(tensor.begin, end);
    CHECK_GE(tensor.bytes(), 0);
    end = tensor.end;
  }
  CHECK_EQ(header->data_begin + end, static_cast<int64_t>(file.size()));
  auto bytes = megatron::LayOutSafetensors(&*header);
  CHECK(bytes.ok()) << bytes.status();
  bytes->resize(bytes->size() + static_cast<size_t>(end));
  const auto again = megatron::ParseSafetensorsHeader(*bytes);
  CHECK(again.ok()) << again.status();
  CHECK_EQ(again->tensors.size(), header->tensors.size());
  CHECK(again->metadata == header->metadata);
  TestShards(header->tensors);
}

// The input as a header, with the right length before it and as many bytes behind it as the
// greatest number in it asks for, where that is few: random search does not find these.
void TestRepairedHeader(absl::string_view text) {
  uint64_t number = 0, greatest = 0;
  for (char c : text) {
    number = c >= '0' && c <= '9' ? number * 10 + static_cast<uint64_t>(c - '0') : 0;
    if (number < 4096) greatest = std::max(greatest, number);
  }
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(text.size() >> (8 * i));
  absl::StrAppend(&file, text, std::string(greatest, '\0'));
  TestHeader(file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  TestHeader(input);
  TestRepairedHeader(input.substr(std::min<size_t>(size, 8)));
  const auto index = megatron::ParseSafetensorsIndex(input);
  if (index.ok()) {
    const auto again =
        megatron::ParseSafetensorsIndex(megatron::SerializeSafetensorsIndex(*index, 1));
    CHECK(again.ok() && *again == *index);
  }
  return 0;
}
