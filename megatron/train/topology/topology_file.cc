#include "megatron/train/topology/topology_file.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/text_format.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/config/text_proto.h"
#include "megatron/train/topology/topology.pb.h"

namespace megatron {
namespace {

// A run of more ranks is no run.
constexpr int64_t kMostRanks = 10'000'000;

absl::Status CheckCount(const char* field, int64_t value) {
  if (value >= 1 && value <= kMostRanks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", value, ": expects an integer from 1 to ", kMostRanks));
}

// Checks a speed that the shape needs, or that it may have.
absl::Status CheckSpeed(const char* field, double value, bool is_needed) {
  if (!is_needed && value == 0) return absl::OkStatus();
  if (std::isfinite(value) && value >= 1e-6 && value <= 1e6) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, value == 0 ? " is missing" : absl::StrCat(": ", value), ": expects 1e-6 to 1e6 GB/s"));
}

absl::Status CheckShape(const MachineShape& shape) {
  if (shape.nodes.empty()) return absl::InvalidArgumentError("there is no node");
  int64_t ranks = 0;
  for (const MachineShape::Node& node : shape.nodes) {
    MEGATRON_RETURN_IF_ERROR(CheckCount("node.ranks", node.ranks));
    MEGATRON_RETURN_IF_ERROR(CheckCount("node.rails", node.rails));
    ranks += node.ranks;
    MEGATRON_RETURN_IF_ERROR(CheckCount("the sum of node.ranks", ranks));
  }
  MEGATRON_RETURN_IF_ERROR(CheckCount("domain", shape.domain));
  const auto spans_domains = [&](const auto& node) { return node.ranks > shape.domain; };
  MEGATRON_RETURN_IF_ERROR(
      CheckSpeed("domain_gb_per_s", shape.domain_gb_per_s, shape.domain > 1 && ranks > 1));
  MEGATRON_RETURN_IF_ERROR(
      CheckSpeed("node_gb_per_s", shape.node_gb_per_s,
                 std::any_of(shape.nodes.begin(), shape.nodes.end(), spans_domains)));
  return CheckSpeed("rail_gb_per_s", shape.rail_gb_per_s,
                    shape.nodes.size() > 1 && ranks > shape.domain);
}

}  // namespace

int64_t MachineShape::ranks() const {
  int64_t sum = 0;
  for (const Node& node : nodes) sum += node.ranks;
  return sum;
}

int64_t MachineShape::reach() const { return std::max(domain, nodes.front().ranks); }

absl::StatusOr<MachineShape> ParseTopology(absl::string_view text) {
  train::Topology file;
  MEGATRON_RETURN_IF_ERROR(ParseTextProto(text, &file));
  MachineShape shape;
  for (const train::Topology::Node& node : file.node()) {
    shape.nodes.push_back(
        {node.host(), node.ranks(), node.has_rails() ? node.rails() : node.ranks()});
  }
  if (file.has_domain()) {
    shape.domain = file.domain();
  } else if (!shape.nodes.empty()) {
    shape.domain = shape.nodes.front().ranks;
  }
  shape.domain_gb_per_s = file.domain_gb_per_s();
  shape.node_gb_per_s = file.node_gb_per_s();
  shape.rail_gb_per_s = file.rail_gb_per_s();
  MEGATRON_RETURN_IF_ERROR(CheckShape(shape));
  return shape;
}

std::string FormatTopology(const MachineShape& shape) {
  std::string text;
  for (const MachineShape::Node& node : shape.nodes) {
    train::Topology::Node message;
    message.set_host(node.host);
    message.set_ranks(node.ranks);
    message.set_rails(node.rails);
    absl::StrAppend(&text, "node { ", message.ShortDebugString(), " }\n");
  }
  absl::StrAppend(&text, "domain: ", shape.domain, "\n");
  const auto speed = [&](const char* field, double value) {
    if (value > 0) absl::StrAppendFormat(&text, "%s: %.17g\n", field, value);
  };
  speed("domain_gb_per_s", shape.domain_gb_per_s);
  speed("node_gb_per_s", shape.node_gb_per_s);
  speed("rail_gb_per_s", shape.rail_gb_per_s);
  return text;
}

}  // namespace megatron
