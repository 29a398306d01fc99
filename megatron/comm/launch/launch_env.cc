#include "megatron/comm/launch/launch_env.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

constexpr size_t kMaxNodes = 100000;
constexpr LaunchSource kSources[] = {LaunchSource::kExplicit, LaunchSource::kTorchrun,
                                     LaunchSource::kOpenMpi,  LaunchSource::kPmi,
                                     LaunchSource::kSlurm,    LaunchSource::kSingle};
// The ports that jobs get without asking for one: below those that systems assign by themselves.
constexpr int kFirstPort = 20000, kNumPorts = 10000;

// The settings of one source.
struct Place {
  int rank = 0, world_size = 1, local_rank = 0, local_world_size = 1;
};

// One variable under several names, of which the first that is set counts.
struct Variable {
  std::vector<const char*> names;
};

class Reader {
 public:
  explicit Reader(const EnvironmentMap& environment) : environment_(environment) {}

  // Returns null where none of the names is set.
  const std::pair<const std::string, std::string>* Find(const Variable& variable) const {
    for (const char* name : variable.names) {
      const auto found = environment_.find(name);
      if (found != environment_.end() && !found->second.empty()) return &*found;
    }
    return nullptr;
  }
  std::string Text(const char* name) const {
    const auto* found = Find({{name}});
    return found == nullptr ? "" : found->second;
  }

  absl::StatusOr<int> Number(const Variable& variable, std::optional<int> missing) const {
    const auto* found = Find(variable);
    if (found == nullptr) {
      if (missing.has_value()) return *missing;
      return absl::InvalidArgumentError(absl::StrCat(variable.names[0], " is not set"));
    }
    int value = 0;
    if (!absl::SimpleAtoi(found->second, &value) || value < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(found->first, "=", found->second, " is no number that it could be"));
    }
    return value;
  }

 private:
  const EnvironmentMap& environment_;
};

struct SourceVariables {
  Variable rank, size, local_rank, local_size;
};

SourceVariables VariablesOf(LaunchSource source) {
  switch (source) {
    case LaunchSource::kExplicit:
      return {{{"MEGATRON_RANK"}},
              {{"MEGATRON_WORLD_SIZE"}},
              {{"MEGATRON_LOCAL_RANK"}},
              {{"MEGATRON_LOCAL_WORLD_SIZE"}}};
    case LaunchSource::kTorchrun:
      return {{{"RANK"}}, {{"WORLD_SIZE"}}, {{"LOCAL_RANK"}}, {{"LOCAL_WORLD_SIZE"}}};
    case LaunchSource::kOpenMpi:
      return {{{"OMPI_COMM_WORLD_RANK"}},
              {{"OMPI_COMM_WORLD_SIZE"}},
              {{"OMPI_COMM_WORLD_LOCAL_RANK"}},
              {{"OMPI_COMM_WORLD_LOCAL_SIZE"}}};
    case LaunchSource::kPmi:
      return {{{"PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK"}},
              {{"PMI_SIZE", "MV2_COMM_WORLD_SIZE"}},
              {{"MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK"}},
              {{"MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE"}}};
    case LaunchSource::kSlurm:
      return {
          {{"SLURM_PROCID"}}, {{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}}, {{"SLURM_LOCALID"}}, {}};
    case LaunchSource::kSingle:
      return {};
  }
  return {};
}

// Returns whether a source's launcher started this process. What it sets for other reasons does not
// count: a batch script has Slurm's variables without being a task of a step; PMIX_RANK and
// SLURM_PROCID both come from srun, and the world's size from Slurm then.
bool IsThere(LaunchSource source, const Reader& reader) {
  const SourceVariables variables = VariablesOf(source);
  if (source == LaunchSource::kSingle) return true;
  if (source == LaunchSource::kSlurm &&
      reader.Find({{"SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NODELIST"}}) == nullptr) {
    return false;
  }
  if (source == LaunchSource::kPmi) {
    return reader.Find(variables.rank) != nullptr && reader.Find(variables.size) != nullptr;
  }
  if (source == LaunchSource::kExplicit || source == LaunchSource::kTorchrun) {
    return reader.Find(variables.rank) != nullptr || reader.Find(variables.size) != nullptr;
  }
  return reader.Find(variables.rank) != nullptr;
}

absl::StatusOr<int> SlurmLocalSize(const Reader& reader, const Place& place) {
  const auto* tasks = reader.Find({{"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}});
  if (tasks == nullptr) return place.local_rank + 1;
  MEGATRON_ASSIGN_OR_RETURN(const int node, reader.Number({{"SLURM_NODEID"}}, 0));
  absl::StatusOr<int> size = SlurmTasksOfNode(tasks->second, node);
  MEGATRON_RETURN_IF_ERROR(size.status(), _.SetPrepend() << tasks->first << ": ");
  return size;
}

absl::StatusOr<Place> ReadPlace(LaunchSource source, const Reader& reader) {
  Place place;
  if (source == LaunchSource::kSingle) return place;
  const SourceVariables variables = VariablesOf(source);
  MEGATRON_ASSIGN_OR_RETURN(place.rank, reader.Number(variables.rank, std::nullopt));
  MEGATRON_ASSIGN_OR_RETURN(place.world_size, reader.Number(variables.size, std::nullopt));
  // Whoever does not say where it is: alone on a node of a world that may be spread.
  MEGATRON_ASSIGN_OR_RETURN(place.local_rank, reader.Number(variables.local_rank, 0));
  if (source == LaunchSource::kSlurm) {
    MEGATRON_ASSIGN_OR_RETURN(place.local_world_size, SlurmLocalSize(reader, place));
  } else {
    MEGATRON_ASSIGN_OR_RETURN(place.local_world_size,
                              reader.Number(variables.local_size, place.local_rank + 1));
  }
  if (place.rank >= place.world_size || place.local_rank >= place.local_world_size ||
      place.local_world_size > place.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", place.rank, " of ", place.world_size, ", ", place.local_rank, " of ",
                     place.local_world_size, " on this node, cannot be (", Name(source), ")"));
  }
  return place;
}

// Slurm may have started torchrun's agents, one a node, and these the ranks.
absl::StatusOr<bool> SlurmStartedAgents(const Reader& reader, const Place& slurm) {
  if (reader.Find({{"GROUP_RANK"}}) == nullptr) return false;
  MEGATRON_ASSIGN_OR_RETURN(const int agent, reader.Number({{"GROUP_RANK"}}, 0));
  MEGATRON_ASSIGN_OR_RETURN(const int agents,
                            reader.Number({{"GROUP_WORLD_SIZE"}}, slurm.world_size));
  return agent < agents && agents == slurm.world_size;
}

std::string Text(LaunchSource source, const Place& place) {
  return absl::StrCat(Name(source), " says rank ", place.rank, " of ", place.world_size);
}

absl::StatusOr<std::optional<LaunchSource>> NamedSource(const Reader& reader) {
  const std::string name = reader.Text("MEGATRON_LAUNCH");
  if (name.empty()) return std::optional<LaunchSource>();
  std::vector<std::string> names;
  for (LaunchSource source : kSources) {
    if (name == Name(source)) return std::optional<LaunchSource>(source);
    names.push_back(Name(source));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("MEGATRON_LAUNCH=", name, " is none of ", absl::StrJoin(names, ", ")));
}

absl::Status CheckAgreement(LaunchSource source, const Place& place, LaunchSource other,
                            const Reader& reader) {
  MEGATRON_ASSIGN_OR_RETURN(const Place other_place, ReadPlace(other, reader));
  if (place.rank == other_place.rank && place.world_size == other_place.world_size) {
    return absl::OkStatus();
  }
  if (source == LaunchSource::kTorchrun && other == LaunchSource::kSlurm) {
    MEGATRON_ASSIGN_OR_RETURN(const bool agents, SlurmStartedAgents(reader, other_place));
    if (agents) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      Text(source, place), " but ", Text(other, other_place),
      "; set MEGATRON_LAUNCH=", Name(source), " or =", Name(other), " to say which one counts"));
}

absl::Status SetMaster(const Reader& reader, LaunchEnvironment* launch) {
  const std::string address = reader.Text("MASTER_ADDR");
  const std::string nodes = reader.Text("SLURM_STEP_NODELIST");
  if (!address.empty()) {
    launch->master_addr = address;
  } else if (launch->source == LaunchSource::kSlurm && !nodes.empty()) {
    MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> expanded, ExpandSlurmNodes(nodes),
                              _ << "in SLURM_STEP_NODELIST");
    launch->master_addr = expanded[0];
  } else if (launch->local_world_size < launch->world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "MASTER_ADDR is not set, and only ", launch->local_world_size, " of ", launch->world_size,
        " ranks are on this node (", Name(launch->source), "): set it to rank 0's address"));
  }
  int port = launch->master_port;
  if (launch->source == LaunchSource::kSlurm) {  // two jobs on one node want two ports
    MEGATRON_ASSIGN_OR_RETURN(const int job, reader.Number({{"SLURM_JOB_ID"}}, 0));
    port = kFirstPort + job % kNumPorts;
  }
  MEGATRON_ASSIGN_OR_RETURN(launch->master_port, reader.Number({{"MASTER_PORT"}}, port));
  if (launch->master_port < 1 || launch->master_port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("MASTER_PORT=", launch->master_port, " is no port"));
  }
  // With most kinds of rendezvous an agent of torchrun listens at MASTER_PORT itself.
  if (launch->source == LaunchSource::kTorchrun &&
      reader.Text("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    launch->master_port = kFirstPort + (launch->master_port + kNumPorts / 2) % kNumPorts;
  }
  return absl::OkStatus();
}

// Appends the numbers of "01-03" or "7".
absl::Status ExpandRange(absl::string_view range, std::vector<std::string>* suffixes) {
  const size_t dash = range.find('-');
  const absl::string_view first = range.substr(0, dash);
  const absl::string_view last = dash == absl::string_view::npos ? first : range.substr(dash + 1);
  int begin = 0, end = 0;
  const auto all_digits = [](absl::string_view text) {
    return !text.empty() && text.size() <= 9 &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  if (!all_digits(first) || !all_digits(last) || !absl::SimpleAtoi(first, &begin) ||
      !absl::SimpleAtoi(last, &end) || end < begin) {
    return absl::InvalidArgumentError(absl::StrCat("'", range, "' is no range of nodes"));
  }
  if (end - begin >= static_cast<int>(kMaxNodes)) {
    return absl::InvalidArgumentError(absl::StrCat("'", range, "' is too many nodes"));
  }
  for (int node = begin; node <= end; ++node) {
    std::string digits = absl::StrCat(node);
    if (digits.size() < first.size()) digits.insert(0, first.size() - digits.size(), '0');
    suffixes->push_back(std::move(digits));
  }
  return absl::OkStatus();
}

// Returns the words for the variables of a launcher.
const char* Variables(LaunchSource source) {
  switch (source) {
    case LaunchSource::kExplicit:
      return "the MEGATRON_ variables";
    case LaunchSource::kTorchrun:
      return "torchrun's variables";
    case LaunchSource::kOpenMpi:
      return "Open MPI's variables";
    case LaunchSource::kPmi:
      return "PMI's variables";
    case LaunchSource::kSlurm:
      return "Slurm's variables";
    case LaunchSource::kSingle:
      return "no variables";
  }
  return "?";
}

// Appends each of `suffixes` to each of `names`.
absl::Status Multiply(const std::vector<std::string>& suffixes, std::vector<std::string>* names) {
  if (names->size() * suffixes.size() > kMaxNodes) {
    return absl::InvalidArgumentError("too many nodes");
  }
  std::vector<std::string> products;
  for (const std::string& name : *names) {
    for (const std::string& suffix : suffixes) products.push_back(name + suffix);
  }
  *names = std::move(products);
  return absl::OkStatus();
}

}  // namespace

const char* Name(LaunchSource source) {
  switch (source) {
    case LaunchSource::kExplicit:
      return "explicit";
    case LaunchSource::kTorchrun:
      return "torchrun";
    case LaunchSource::kOpenMpi:
      return "openmpi";
    case LaunchSource::kPmi:
      return "pmi";
    case LaunchSource::kSlurm:
      return "slurm";
    case LaunchSource::kSingle:
      return "single";
  }
  return "?";
}

std::string LaunchEnvironment::Describe() const {
  std::string text = absl::StrCat("rank ", rank, " of ", world_size);
  if (world_size > 1) {
    absl::StrAppend(&text, " (local rank ", local_rank, " of ", local_world_size,
                    "), rendezvous at ", master_addr, ":", master_port);
  }
  absl::StrAppend(&text, source == LaunchSource::kSingle
                             ? std::string(", without a launcher")
                             : absl::StrCat(", from ", Variables(source)));
  for (const LaunchSource other : also)
    absl::StrAppend(&text, "; ", Variables(other), " are set, too");
  return text;
}

absl::StatusOr<LaunchEnvironment> ReadLaunchEnvironment(const EnvironmentMap& environment) {
  const Reader reader(environment);
  MEGATRON_ASSIGN_OR_RETURN(const std::optional<LaunchSource> named, NamedSource(reader));
  std::vector<LaunchSource> there;
  for (LaunchSource source : kSources) {
    if (IsThere(source, reader)) there.push_back(source);
  }
  LaunchEnvironment launch;
  launch.source = named.value_or(there[0]);
  MEGATRON_ASSIGN_OR_RETURN(const Place place, ReadPlace(launch.source, reader));
  launch.rank = place.rank;
  launch.world_size = place.world_size;
  launch.local_rank = place.local_rank;
  launch.local_world_size = place.local_world_size;
  for (LaunchSource other : there) {
    if (other == launch.source || other == LaunchSource::kSingle) continue;
    if (!named.has_value()) {
      MEGATRON_RETURN_IF_ERROR(CheckAgreement(launch.source, place, other, reader));
    }
    launch.also.push_back(other);
  }
  MEGATRON_RETURN_IF_ERROR(SetMaster(reader, &launch));
  if (launch.rank == 0 && reader.Find({{kStoreListenerVariable}}) != nullptr) {
    MEGATRON_ASSIGN_OR_RETURN(launch.listener,
                              reader.Number({{kStoreListenerVariable}}, std::nullopt));
  }
  launch.store_is_served = reader.Find({{kStoreServedVariable}}) != nullptr;
  launch.host = reader.Text(kHostVariable);
  MEGATRON_ASSIGN_OR_RETURN(
      launch.restarts,
      reader.Number({{kRestartCountVariable, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"}},
                    0));
  launch.restart_reason = reader.Text(kRestartReasonVariable);
  int64_t milliseconds = 0;
  if (absl::SimpleAtoi(reader.Text(kLaunchTimeVariable), &milliseconds))
    launch.launch_time = absl::FromUnixMillis(milliseconds);
  return launch;
}

EnvironmentMap ProcessEnvironment() {
  EnvironmentMap map;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == absl::string_view::npos) continue;
    map[std::string(text.substr(0, equals))] = std::string(text.substr(equals + 1));
  }
  return map;
}

absl::StatusOr<std::vector<std::string>> ExpandSlurmNodes(absl::string_view list) {
  std::vector<std::string> nodes;
  for (size_t at = 0; at <= list.size();) {
    std::vector<std::string> names = {""};
    while (at < list.size() && list[at] != ',') {
      if (list[at] != '[') {
        const size_t end = std::min(list.find_first_of(",[", at), list.size());
        for (std::string& name : names) absl::StrAppend(&name, list.substr(at, end - at));
        at = end;
        continue;
      }
      const size_t close = list.find(']', at);
      if (close == absl::string_view::npos) {
        return absl::InvalidArgumentError(absl::StrCat("'", list, "' has a [ without a ]"));
      }
      std::vector<std::string> suffixes;
      for (absl::string_view ranges = list.substr(at + 1, close - at - 1);;) {
        const size_t comma = ranges.find(',');
        MEGATRON_RETURN_IF_ERROR(ExpandRange(ranges.substr(0, comma), &suffixes));
        if (suffixes.size() > kMaxNodes) return absl::InvalidArgumentError("too many nodes");
        if (comma == absl::string_view::npos) break;
        ranges.remove_prefix(comma + 1);
      }
      MEGATRON_RETURN_IF_ERROR(Multiply(suffixes, &names));
      at = close + 1;
    }
    for (std::string& name : names) {
      if (name.empty())
        return absl::InvalidArgumentError(absl::StrCat("a node without a name in '", list, "'"));
      if (absl::StrContains(name, ']')) {
        return absl::InvalidArgumentError(absl::StrCat("'", list, "' has a ] without a ["));
      }
      nodes.push_back(std::move(name));
    }
    if (nodes.size() > kMaxNodes) return absl::InvalidArgumentError("too many nodes");
    ++at;  // the comma
  }
  return nodes;
}

absl::StatusOr<int> SlurmTasksOfNode(absl::string_view tasks_per_node, int node) {
  int before = 0;
  for (absl::string_view rest = tasks_per_node;;) {
    const size_t comma = rest.find(',');
    const absl::string_view entry = rest.substr(0, comma);
    const size_t paren = entry.find("(x");
    int tasks = 0, nodes = 1;
    bool valid = absl::SimpleAtoi(entry.substr(0, paren), &tasks) && tasks > 0;
    if (paren != absl::string_view::npos) {
      valid = valid && absl::EndsWith(entry, ")") &&
              absl::SimpleAtoi(entry.substr(paren + 2, entry.size() - paren - 3), &nodes) &&
              nodes > 0 && nodes <= static_cast<int>(kMaxNodes);
    }
    if (!valid) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", tasks_per_node, "' is no list of tasks per node"));
    }
    if (node < before + nodes) return tasks;
    before += nodes;
    if (comma == absl::string_view::npos || before > static_cast<int>(kMaxNodes)) break;
    rest.remove_prefix(comma + 1);
  }
  return absl::InvalidArgumentError(absl::StrCat("'", tasks_per_node, "' has no node ", node));
}

}  // namespace megatron
