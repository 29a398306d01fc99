#include "megatron/train/profile/memory_table.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/quantity.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron {
namespace {

struct Row {
  std::string name;
  int64_t held = 0, planned = 0;
};

std::vector<Row> RowsOf(const BytesByName& at_peak, const BytesByName& planned) {
  std::map<std::string, Row> by_name;
  for (const auto& [name, bytes] : at_peak) by_name[name].held = bytes;
  for (const auto& [name, bytes] : planned) by_name[name].planned = bytes;
  std::vector<Row> rows;
  for (auto& [name, row] : by_name) {
    if (row.held == 0 && row.planned == 0) continue;
    row.name = name;
    rows.push_back(row);
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.held > b.held; });
  return rows;
}

std::string FormatRow(const Row& row) {
  return absl::StrFormat("    %-28s %12s %12s\n", row.name, FormatBytes(row.held),
                         FormatBytes(row.planned));
}

// Returns this process's peak resident bytes, 0 if the system does not tell.
int64_t MostResidentBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmHWM:") {
      int64_t kilobytes = 0;
      status >> kilobytes;
      return kilobytes * 1024;
    }
    status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

}  // namespace

std::string FormatMemoryTable(const BytesByName& at_peak, const BytesByName& planned) {
  std::string text = absl::StrFormat("    %-28s %12s %12s\n", "memory", "at the peak", "planned");
  Row total = {"all of these"};
  for (const Row& row : RowsOf(at_peak, planned)) {
    absl::StrAppend(&text, FormatRow(row));
    total.held += row.held;
    total.planned += row.planned;
  }
  return absl::StrCat(text, FormatRow(total));
}

std::string FormatProcessMemory(Device device) {
  std::string text;
  const int64_t resident = MostResidentBytes();
  if (resident > 0) {
    absl::StrAppendFormat(&text, "    %-28s %12s\n", "the process, resident",
                          FormatBytes(resident));
  }
  if (device.type == DeviceType::kCuda) {
    const CudaMemory memory = CudaMemoryOf(device.index);
    absl::StrAppendFormat(&text, "    %-28s %12s\n", absl::StrCat("taken of cuda:", device.index),
                          FormatBytes(memory.total_bytes - memory.free_bytes));
  }
  return text;
}

}  // namespace megatron
