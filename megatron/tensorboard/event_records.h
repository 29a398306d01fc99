// The records of TensorBoard's event files: a length, its checksum, the bytes, their checksum. The
// checksums are CRC-32C, masked. TFRecord files have the same records.
//
//   std::string file;
//   AppendRecord(event.SerializeAsString(), &file);
//
//   absl::string_view rest = file;
//   while (const std::optional<absl::string_view> record = TakeRecord(&rest)) Read(*record);
//   // What is left in `rest` is torn or damaged, and readers never go beyond it.
#ifndef MEGATRON_TENSORBOARD_EVENT_RECORDS_H_
#define MEGATRON_TENSORBOARD_EVENT_RECORDS_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace megatron::tensorboard {

void AppendRecord(absl::string_view data, std::string* file);

// Takes the record at the front of `bytes` off it and returns its data. Returns nothing, and takes
// nothing, if no whole record with right checksums is there.
std::optional<absl::string_view> TakeRecord(absl::string_view* bytes);

}  // namespace megatron::tensorboard

#endif  // MEGATRON_TENSORBOARD_EVENT_RECORDS_H_
