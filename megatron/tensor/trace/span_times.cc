#include "megatron/tensor/trace/span_times.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace megatron {
namespace {

// Returns the number of digits of a binary number.
int Digits(int64_t bytes) {
  int digits = 0;
  for (; bytes > 0; bytes >>= 1) ++digits;
  return digits;
}

}  // namespace

size_t SpanTimes::Find(const char* name, const TraceCall* call) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.name != name && std::strcmp(entry.name, name) != 0) continue;
    if (call == nullptr ? entry.total.group.empty() : entry.total.group == call->group) return i;
  }
  Entry entry;
  entry.name = name;
  entry.total.name = name;
  if (call != nullptr) {
    entry.total.group = call->group;
    entry.total.ranks = call->ranks;
  }
  entries_.push_back(std::move(entry));
  return entries_.size() - 1;
}

void SpanTimes::Add(size_t place, int64_t nanoseconds, int64_t bytes) {
  Entry& entry = entries_[place];
  ++entry.total.count;
  entry.total.bytes += bytes;
  entry.total.nanoseconds += nanoseconds;
  if (entry.total.group.empty()) return;
  int64_t& fastest = entry.fastest[Digits(bytes)];
  if (fastest == 0 || nanoseconds < fastest) fastest = std::max<int64_t>(nanoseconds, 1);
  entry.total.waiting += std::max<int64_t>(nanoseconds - fastest, 0);
}

std::vector<SpanTotal> SpanTimes::Totals() const {
  std::vector<SpanTotal> totals;
  totals.reserve(entries_.size());
  for (const Entry& entry : entries_) totals.push_back(entry.total);
  return totals;
}

}  // namespace megatron
