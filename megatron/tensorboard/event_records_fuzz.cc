// Fuzzes the reader of event files: any bytes give records that lie in them, follow each other, and
// are written back as the same bytes. The bytes are also read as the contents of one record.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/tensorboard/event.pb.h"
#include "megatron/tensorboard/event_records.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using megatron::tensorboard::AppendRecord;
  using megatron::tensorboard::TakeRecord;
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  absl::string_view rest = bytes;
  std::string again;
  while (const std::optional<absl::string_view> record = TakeRecord(&rest)) {
    AppendRecord(*record, &again);
    megatron::tensorboard::Event().ParseFromArray(record->data(), static_cast<int>(record->size()));
  }
  CHECK_EQ(bytes, again + std::string(rest));
  std::string one;
  AppendRecord(bytes, &one);
  rest = one;
  CHECK(TakeRecord(&rest) == bytes);
  CHECK(rest.empty());
  megatron::tensorboard::Event().ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  return 0;
}
