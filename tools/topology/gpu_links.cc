#include "tools/topology/gpu_links.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "megatron/base/quoted.h"

namespace megatron {
namespace {

constexpr size_t kMostDevices = 256;

// nvidia-smi underlines the header.
std::string WithoutEscapes(absl::string_view line) {
  std::string plain;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b' && i + 1 < line.size() && line[i + 1] == '[') {
      i += 2;
      while (i < line.size() && !absl::ascii_isalpha(line[i])) ++i;
    } else {
      plain.push_back(line[i]);
    }
  }
  return plain;
}

std::vector<std::string> WordsOf(absl::string_view line) {
  return absl::StrSplit(WithoutEscapes(line), absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
}

absl::Status Error(size_t line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line + 1, ": ", what));
}

}  // namespace

int GpuLinks::Domain() const {
  for (int size = gpus; size > 1; --size) {
    if (gpus % size != 0) continue;
    bool is_joined = true;
    for (int a = 0; a < gpus; ++a) {
      const int first = a / size * size;
      for (int b = first; b < first + size; ++b)
        is_joined = is_joined && (a == b || absl::StartsWith(between[a][b], "NV"));
    }
    if (is_joined) return size;
  }
  return 1;
}

absl::StatusOr<GpuLinks> ParseGpuLinks(absl::string_view text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  size_t line = 0;
  std::vector<std::string> devices;
  for (; line < lines.size() && devices.empty(); ++line) {
    for (const std::string& word : WordsOf(lines[line])) {
      if (devices.empty() && word != "GPU0") break;
      if (word == "CPU") break;  // the columns of affinities
      if (devices.size() == kMostDevices)
        return Error(line, absl::StrCat("more than ", kMostDevices, " devices"));
      devices.push_back(word);
    }
  }
  if (devices.empty())
    return absl::InvalidArgumentError("there is no header that begins with GPU0");

  GpuLinks links;
  for (const std::string& device : devices) {
    const bool is_gpu = absl::StartsWith(device, "GPU");
    if (is_gpu && links.network_cards > 0)
      return Error(line - 1, "GPUs stand before other devices");
    ++(is_gpu ? links.gpus : links.network_cards);
  }
  for (int gpu = 0; gpu < links.gpus; ++gpu, ++line) {
    const std::vector<std::string> words =
        line < lines.size() ? WordsOf(lines[line]) : std::vector<std::string>();
    if (words.empty() || words[0] != devices[gpu])
      return Error(line, absl::StrCat("expects the row of ", Quoted(devices[gpu])));
    if (words.size() < 1 + devices.size())
      return Error(line, absl::StrCat("has ", words.size() - 1, " of ", devices.size(), " cells"));
    links.between.emplace_back(words.begin() + 1, words.begin() + 1 + links.gpus);
    if (links.between[gpu][gpu] != "X")
      return Error(line, absl::StrCat(Quoted(devices[gpu]), " has no X under itself"));
  }
  return links;
}

}  // namespace megatron
