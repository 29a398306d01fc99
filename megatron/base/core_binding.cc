#include "megatron/base/core_binding.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "megatron/base/quoted.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

constexpr int kMostNumbers = 8192;               // more than Linux has hardware threads or nodes
constexpr std::streamsize kMostBytes = 1 << 16;  // a file has; a list of all numbers has fewer

// Returns the text of a small file; nothing where it cannot be read.
std::optional<std::string> ReadSmallFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text(kMostBytes, '\0');
  file.read(text.data(), kMostBytes);
  if (file.bad()) return std::nullopt;
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

// Returns a number that stands alone; nothing where it is none, or out of range.
std::optional<int> ParseNumber(absl::string_view text) {
  const bool digits = !text.empty() && text.size() <= 6 &&
                      std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  int number = 0;
  if (!digits || !absl::SimpleAtoi(text, &number) || number >= kMostNumbers) return std::nullopt;
  return number;
}

// Returns the list in a file; nothing where there is no file.
absl::StatusOr<std::optional<std::vector<int>>> ReadNumberList(const std::string& path) {
  const std::optional<std::string> text = ReadSmallFile(path);
  if (!text.has_value()) return std::nullopt;
  MEGATRON_ASSIGN_OR_RETURN(std::vector<int> numbers, ParseNumberList(*text), _ << "in " << path);
  return std::make_optional(std::move(numbers));
}

// Puts the allowed threads of a node together by their cores.
absl::StatusOr<std::vector<CoreTopology::Core>> CoresOf(const std::string& sys,
                                                        const std::vector<int>& threads) {
  std::map<int, CoreTopology::Core> cores;  // by the core's first thread
  for (const int thread : threads) {
    MEGATRON_ASSIGN_OR_RETURN(const std::optional<std::vector<int>> siblings,
                              ReadNumberList(absl::StrCat(sys, "/devices/system/cpu/cpu", thread,
                                                          "/topology/thread_siblings_list")));
    const bool told = siblings.has_value() && !siblings->empty();
    cores[told ? std::min(thread, siblings->front()) : thread].push_back(thread);
  }
  std::vector<CoreTopology::Core> sorted;
  for (auto& [first, core] : cores) sorted.push_back(std::move(core));
  return sorted;
}

}  // namespace

absl::StatusOr<std::vector<int>> ParseNumberList(absl::string_view text) {
  std::vector<int> numbers;
  const absl::string_view list = absl::StripAsciiWhitespace(text);
  if (list.empty()) return numbers;
  const auto wrong = [&] {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(list.substr(0, 100)),
                                                   " is no ascending list of numbers below ",
                                                   kMostNumbers, " such as \"0-3,8\""));
  };
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(part, absl::MaxSplits('-', 1));
    const std::optional<int> first = ParseNumber(ends.first);
    const std::optional<int> last =
        part.find('-') == absl::string_view::npos ? first : ParseNumber(ends.second);
    if (!first || !last || *last < *first || (!numbers.empty() && *first <= numbers.back()))
      return wrong();
    for (int number = *first; number <= *last; ++number) numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<CoreTopology> ReadCoreTopology(const std::string& sys,
                                              absl::Span<const int> allowed) {
  const std::string nodes = sys + "/devices/system/node";
  MEGATRON_ASSIGN_OR_RETURN(const std::optional<std::vector<int>> online,
                            ReadNumberList(nodes + "/online"));
  CoreTopology machine;
  std::set<int> left(allowed.begin(), allowed.end());
  for (const int number : online.value_or(std::vector<int>())) {
    const std::string path = absl::StrCat(nodes, "/node", number, "/cpulist");
    MEGATRON_ASSIGN_OR_RETURN(const std::optional<std::vector<int>> threads, ReadNumberList(path));
    std::vector<int> here;
    for (const int thread : threads.value_or(std::vector<int>())) {
      if (left.erase(thread) > 0) here.push_back(thread);
    }
    if (here.empty()) continue;  // a node of memory alone, or one that is not allowed
    MEGATRON_ASSIGN_OR_RETURN(std::vector<CoreTopology::Core> cores, CoresOf(sys, here));
    machine.nodes.push_back({number, std::move(cores)});
  }
  if (!online.has_value() && !left.empty()) {
    const std::vector<int> all(left.begin(), left.end());
    MEGATRON_ASSIGN_OR_RETURN(std::vector<CoreTopology::Core> cores, CoresOf(sys, all));
    machine.nodes.push_back({0, std::move(cores)});
  }
  if (machine.nodes.empty())
    return absl::NotFoundError(absl::StrCat("no node in ", nodes, " has cores for this process"));
  return machine;
}

std::optional<int> NodeOfPciDevice(const std::string& sys, absl::string_view bus_id) {
  const bool is_id = !bus_id.empty() && bus_id.size() <= 32 &&
                     std::all_of(bus_id.begin(), bus_id.end(),
                                 [](char c) {
                                   return absl::ascii_isxdigit(static_cast<unsigned char>(c)) ||
                                          c == ':' || c == '.';
                                 }) &&
                     bus_id.find("..") == absl::string_view::npos;
  if (!is_id) return std::nullopt;
  const std::optional<std::string> text = ReadSmallFile(
      absl::StrCat(sys, "/bus/pci/devices/", absl::AsciiStrToLower(bus_id), "/numa_node"));
  // Linux writes -1 where the firmware does not say.
  return text.has_value() ? ParseNumber(absl::StripAsciiWhitespace(*text)) : std::nullopt;
}

CoreShare ShareOfRank(const CoreTopology& machine, absl::Span<const std::optional<int>> nearest,
                      int rank) {
  const auto nodes = static_cast<int64_t>(machine.nodes.size());
  const auto ranks = static_cast<int64_t>(nearest.size());
  // The index of a rank's node.
  const auto index_of = [&](int64_t of) {
    for (int64_t i = 0; i < nodes; ++i) {
      if (nearest[of] == machine.nodes[i].number) return i;
    }
    return of * nodes / ranks;
  };
  const int64_t mine = index_of(rank);
  int64_t before = 0, sharing = 0;
  for (int64_t other = 0; other < ranks; ++other) {
    if (index_of(other) != mine) continue;
    if (other < rank) ++before;
    ++sharing;
  }
  const CoreTopology::Node& node = machine.nodes[mine];
  const auto cores = static_cast<int64_t>(node.cores.size());
  int64_t begin = before * cores / sharing, end = (before + 1) * cores / sharing;
  if (cores < sharing) {
    begin = 0;
    end = cores;
  }
  CoreShare share = {node.number, {}};
  for (int64_t i = begin; i < end; ++i)
    share.threads.insert(share.threads.end(), node.cores[i].begin(), node.cores[i].end());
  std::sort(share.threads.begin(), share.threads.end());
  return share;
}

std::vector<int> AllowedThreads() {
  cpu_set_t* const set = CPU_ALLOC(kMostNumbers);
  const size_t bytes = CPU_ALLOC_SIZE(kMostNumbers);
  CPU_ZERO_S(bytes, set);
  std::vector<int> threads;
  if (sched_getaffinity(0, bytes, set) == 0) {
    for (int i = 0; i < kMostNumbers; ++i) {
      if (CPU_ISSET_S(i, bytes, set)) threads.push_back(i);
    }
  }
  CPU_FREE(set);
  return threads;
}

absl::Status BindThisThread(absl::Span<const int> threads) {
  cpu_set_t* const set = CPU_ALLOC(kMostNumbers);
  const size_t bytes = CPU_ALLOC_SIZE(kMostNumbers);
  CPU_ZERO_S(bytes, set);
  for (const int thread : threads) CPU_SET_S(thread, bytes, set);
  const bool bound = sched_setaffinity(0, bytes, set) == 0;
  const int error = errno;
  CPU_FREE(set);
  if (bound) return absl::OkStatus();
  return absl::ErrnoToStatus(error,
                             absl::StrCat("cannot bind a thread to cores ", NumberList(threads)));
}

std::string NumberList(absl::Span<const int> ascending) {
  std::string text;
  for (size_t begin = 0, end = 0; begin < ascending.size(); begin = end) {
    for (end = begin + 1; end < ascending.size() && ascending[end] == ascending[end - 1] + 1;)
      ++end;
    absl::StrAppend(&text, text.empty() ? "" : ",", ascending[begin]);
    if (end > begin + 1) absl::StrAppend(&text, "-", ascending[end - 1]);
  }
  return text;
}

}  // namespace megatron
