#include "megatron/comm/launch/hostfile.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "megatron/base/quoted.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

constexpr size_t kMaxHostName = 255;

// A name that began with a dash would be an option of ssh.
bool IsHost(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxHostName && name[0] != '-' &&
         absl::c_all_of(name, [](char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
         });
}

absl::StatusOr<HostSlots> ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  int slots = 0;
  absl::string_view count = words.size() == 2 ? words[1] : "";
  if (!absl::ConsumePrefix(&count, "slots=")) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(line), " is not of the form 'worker-1 slots=4'"));
  }
  if (!IsHost(words[0])) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(words[0]), " is no name of a host"));
  }
  if (!absl::c_all_of(count, absl::ascii_isdigit) || !absl::SimpleAtoi(count, &slots) ||
      slots < 1 || slots > kMaxSlots) {
    return absl::InvalidArgumentError(
        absl::StrCat("slots=", Quoted(count), " is none of 1 to ", kMaxSlots));
  }
  HostSlots host = {std::string(words[0]), std::vector<int>(slots)};
  absl::c_iota(host.slots, 0);
  return host;
}

// The slots that --include and --exclude name, by host; none if all are meant.
using Named = std::map<std::string, std::set<int>, std::less<>>;

absl::StatusOr<Named> ParseNamed(absl::string_view text, const std::vector<HostSlots>& hosts) {
  std::map<absl::string_view, const HostSlots*> known;
  for (const HostSlots& host : hosts) known[host.host] = &host;
  Named named;
  for (absl::string_view part : absl::StrSplit(text, '@')) {
    const std::pair<absl::string_view, absl::string_view> sides =
        absl::StrSplit(part, absl::MaxSplits(':', 1));
    const auto host = known.find(sides.first);
    if (host == known.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("host ", Quoted(sides.first), " is not in the hostfile"));
    }
    std::set<int>& slots = named[std::string(sides.first)];
    if (part.find(':') == absl::string_view::npos) continue;
    for (absl::string_view number : absl::StrSplit(sides.second, ',')) {
      int slot = -1;
      if (!absl::SimpleAtoi(number, &slot) || !absl::c_linear_search(host->second->slots, slot)) {
        return absl::InvalidArgumentError(
            absl::StrCat("host ", sides.first, " has no slot ", Quoted(number)));
      }
      slots.insert(slot);
    }
  }
  return named;
}

// Keeps the slots of `host` that are named, or those that are not.
void Keep(const Named& named, bool those, HostSlots* host) {
  const auto found = named.find(host->host);
  const auto is_named = [&](int slot) {
    return found != named.end() && (found->second.empty() || found->second.count(slot) > 0);
  };
  std::vector<int> kept;
  for (int slot : host->slots) {
    if (is_named(slot) == those) kept.push_back(slot);
  }
  host->slots = std::move(kept);
}

absl::Status TakeFirst(const HostFilter& filter, std::vector<HostSlots>* hosts) {
  if (filter.num_nodes == 0 || filter.num_nodes > static_cast<int>(hosts->size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("--num_nodes=", filter.num_nodes, ": there are ", hosts->size()));
  }
  if (filter.num_nodes > 0) hosts->resize(filter.num_nodes);
  for (HostSlots& host : *hosts) {
    if (filter.num_gpus == 0 || filter.num_gpus > static_cast<int>(host.slots.size())) {
      return absl::InvalidArgumentError(absl::StrCat("--num_gpus=", filter.num_gpus, ": host ",
                                                     host.host, " has ", host.slots.size()));
    }
    if (filter.num_gpus > 0) host.slots.resize(filter.num_gpus);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<HostSlots>> ParseHostfile(absl::string_view text,
                                                     absl::string_view path) {
  std::vector<HostSlots> hosts;
  std::set<std::string> names;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    absl::StatusOr<HostSlots> host = ParseLine(line);
    MEGATRON_RETURN_IF_ERROR(host.status(), _.SetPrepend() << path << ":" << number << ": ");
    if (!names.insert(host->host).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": host ", host->host, " is there twice"));
    }
    if (hosts.size() == kMaxHosts) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": more than ", kMaxHosts, " hosts"));
    }
    hosts.push_back(*std::move(host));
  }
  if (hosts.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " names no host"));
  return hosts;
}

absl::StatusOr<std::vector<HostSlots>> FilterHosts(std::vector<HostSlots> hosts,
                                                   const HostFilter& filter) {
  if (!filter.include.empty() && !filter.exclude.empty()) {
    return absl::InvalidArgumentError("--include and --exclude exclude each other");
  }
  const bool include = !filter.include.empty();
  if (include || !filter.exclude.empty()) {
    if (filter.num_nodes >= 0 || filter.num_gpus >= 0) {
      return absl::InvalidArgumentError(
          "--num_nodes and --num_gpus choose from all hosts: not with --include or --exclude");
    }
    absl::StatusOr<Named> named = ParseNamed(include ? filter.include : filter.exclude, hosts);
    MEGATRON_RETURN_IF_ERROR(named.status(), _.SetPrepend()
                                                 << (include ? "--include: " : "--exclude: "));
    for (HostSlots& host : hosts) Keep(*named, include, &host);
    hosts.erase(std::remove_if(hosts.begin(), hosts.end(),
                               [](const HostSlots& host) { return host.slots.empty(); }),
                hosts.end());
    if (hosts.empty()) return absl::InvalidArgumentError("--exclude leaves nothing");
  }
  MEGATRON_RETURN_IF_ERROR(TakeFirst(filter, &hosts));
  return hosts;
}

}  // namespace megatron
