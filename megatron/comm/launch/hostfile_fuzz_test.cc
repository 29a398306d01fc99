// Hostfiles, and what chooses from them, made of any bytes: a list that can be launched or an
// error.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/comm/launch/hostfile.h"

namespace {

void CheckHosts(const std::vector<megatron::HostSlots>& hosts) {
  CHECK(!hosts.empty());
  for (const megatron::HostSlots& host : hosts) {
    CHECK(!host.host.empty() && host.host[0] != '-') << host.host;
    CHECK_EQ(host.host.find_first_of(std::string(" \t'\"\\$;&|<>()\n\r\0", 16)), std::string::npos);
    CHECK(!host.slots.empty() && host.slots.size() <= megatron::kMaxSlots);
  }
}

}  // namespace

// A hostfile, and behind a line with "---" what to include, to exclude and how many.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  const std::vector<absl::string_view> parts = absl::StrSplit(input, "\n---\n");
  const auto hosts = megatron::ParseHostfile(parts[0], "hosts");
  if (!hosts.ok()) return 0;
  CheckHosts(*hosts);
  megatron::HostFilter filter;
  if (parts.size() > 1) filter.include = std::string(parts[1]);
  if (parts.size() > 2) filter.exclude = std::string(parts[2]);
  if (parts.size() > 3) filter.num_nodes = static_cast<int>(parts[3].size());
  const auto filtered = megatron::FilterHosts(*hosts, filter);
  if (filtered.ok()) CheckHosts(*filtered);
  return 0;
}
