#include "megatron/checkpoint/names.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace megatron {
namespace {

constexpr size_t kMaxIterationDigits = 15;
constexpr absl::string_view kShardPrefix = "shard_";
constexpr absl::string_view kShardSuffix = ".bin";
constexpr absl::string_view kPartPrefix = "part_";
constexpr absl::string_view kPartSuffix = ".json";

absl::string_view Suffix(DirectoryKind kind) {
  switch (kind) {
    case DirectoryKind::kFinal:
      return "";
    case DirectoryKind::kTemporary:
      return ".tmp";
    case DirectoryKind::kReplaced:
      return ".old";
  }
  return "";
}

// Returns whether `name` is the prefix, an index below a count, and the suffix, each number spelled
// as "%05d".
bool ParseNumberedName(absl::string_view name, absl::string_view prefix, absl::string_view suffix,
                       int* index) {
  absl::string_view numbers = name;
  if (!absl::ConsumePrefix(&numbers, prefix) || !absl::ConsumeSuffix(&numbers, suffix)) {
    return false;
  }
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(numbers, absl::MaxSplits("_of_", 1));
  int count = 0;
  return absl::SimpleAtoi(parts.first, index) && absl::SimpleAtoi(parts.second, &count) &&
         *index >= 0 && *index < count &&
         absl::StrFormat("%s%05d_of_%05d%s", prefix, *index, count, suffix) == name;
}

}  // namespace

std::string DirectoryName(int64_t iteration, DirectoryKind kind) {
  return absl::StrFormat("iter_%07d%s", iteration, Suffix(kind));
}

bool ParseDirectoryName(absl::string_view name, IterationDirectory* directory) {
  absl::string_view digits = name;
  if (!absl::ConsumePrefix(&digits, "iter_")) return false;
  directory->kind = DirectoryKind::kFinal;
  if (absl::ConsumeSuffix(&digits, ".tmp")) directory->kind = DirectoryKind::kTemporary;
  if (absl::ConsumeSuffix(&digits, ".old")) directory->kind = DirectoryKind::kReplaced;
  return ParseIteration(digits, &directory->iteration) &&
         DirectoryName(directory->iteration, directory->kind) == name;
}

std::string ShardFileName(int index, int count) {
  return absl::StrFormat("%s%05d_of_%05d%s", kShardPrefix, index, count, kShardSuffix);
}

std::string PartFileName(int index, int count) {
  return absl::StrFormat("%s%05d_of_%05d%s", kPartPrefix, index, count, kPartSuffix);
}

bool ParseShardFileName(absl::string_view name, int* index) {
  return ParseNumberedName(name, kShardPrefix, kShardSuffix, index);
}

bool IsShardOrPartFileName(absl::string_view name) {
  int index = 0;
  return ParseShardFileName(name, &index) ||
         ParseNumberedName(name, kPartPrefix, kPartSuffix, &index);
}

bool ParseIteration(absl::string_view text, int64_t* iteration) {
  text = absl::StripAsciiWhitespace(text);
  if (text.size() > kMaxIterationDigits ||
      !std::all_of(text.begin(), text.end(), absl::ascii_isdigit)) {
    return false;
  }
  return absl::SimpleAtoi(text, iteration);
}

}  // namespace megatron
