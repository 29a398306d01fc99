// Shows the contents of a checkpoint, and checks that it is not damaged.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "megatron/base/file_system.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/checkpoint/names.h"
#include "nlohmann/json.hpp"
#include "tools/common/tool_main.h"

ABSL_FLAG(
    bool, json, false,
    "Prints one JSON object in place of the text. After an error nothing is printed to stdout.");
ABSL_FLAG(bool, stats, false,
          "Reads the tensors and prints the L2 norm, mean, least and greatest value of each, and "
          "how many values are infinite or not numbers.");
ABSL_FLAG(bool, verify, false,
          "Reads everything and compares it with its checksums. Names every damaged part; the exit "
          "code is then 22.");

namespace megatron {
namespace {

using Json = nlohmann::ordered_json;

// The part of a tensor that is in memory at a time.
constexpr int64_t kBlockBytes = int64_t{64} << 20;

// RunTool's code for kDataLoss, and its meaning if the data is a checkpoint.
constexpr int kBadData = 21;
constexpr int kCorruptCheckpoint = 22;

struct Stats {
  double sum = 0, sum_of_squares = 0;
  double least = std::numeric_limits<double>::infinity();
  double greatest = -std::numeric_limits<double>::infinity();
  int64_t count = 0;
  int64_t not_finite = 0;

  void Add(double value) {
    if (!std::isfinite(value)) {
      ++not_finite;
      return;
    }
    ++count;
    sum += value;
    sum_of_squares += value * value;
    least = std::min(least, value);
    greatest = std::max(greatest, value);
  }

  double norm() const { return std::sqrt(sum_of_squares); }
  double mean() const { return sum / static_cast<double>(std::max<int64_t>(count, 1)); }
};

double ToDouble(float value) { return value; }
double ToDouble(BFloat16 value) { return ToFloat(value); }
double ToDouble(Float16 value) { return ToFloat(value); }
template <typename Integer>
double ToDouble(Integer value) {
  return static_cast<double>(value);
}

template <typename T>
void AddAll(const Tensor& tensor, Stats* stats) {
  const T* const values = tensor.data<T>();
  for (int64_t i = 0; i < tensor.numel(); ++i) stats->Add(ToDouble(values[i]));
}

void AddTensor(const Tensor& tensor, Stats* stats) {
  switch (tensor.dtype()) {
    case DType::kFloat32:
      return AddAll<float>(tensor, stats);
    case DType::kBFloat16:
      return AddAll<BFloat16>(tensor, stats);
    case DType::kFloat16:
      return AddAll<Float16>(tensor, stats);
    case DType::kInt32:
      return AddAll<int32_t>(tensor, stats);
    case DType::kInt64:
      return AddAll<int64_t>(tensor, stats);
    case DType::kUInt8:
      return AddAll<uint8_t>(tensor, stats);
    case DType::kUInt16:
      return AddAll<uint16_t>(tensor, stats);
  }
}

// Reads the tensor a few rows at a time.
absl::StatusOr<Stats> ComputeStats(const CheckpointReader& reader, const TensorEntry& entry) {
  Stats stats;
  if (entry.shape.numel() == 0) return stats;
  Shape extent = entry.shape;
  Shape offset = entry.shape;
  for (int d = 0; d < offset.rank(); ++d) offset[d] = 0;
  const int64_t rows = entry.shape.rank() == 0 ? 1 : entry.shape[0];
  const int64_t row_bytes = entry.shape.numel() / rows * SizeOf(entry.dtype);
  const int64_t rows_at_once = std::max<int64_t>(1, kBlockBytes / row_bytes);
  std::vector<int64_t> buffer;
  for (int64_t row = 0; row < rows; row += rows_at_once) {
    if (entry.shape.rank() > 0) {
      offset[0] = row;
      extent[0] = std::min(rows_at_once, rows - row);
    }
    buffer.resize(static_cast<size_t>(extent.numel() * SizeOf(entry.dtype) + 7) / 8);
    const Tensor block(buffer.data(), entry.dtype, extent);
    MEGATRON_RETURN_IF_ERROR(reader.Read(entry.name, offset, block));
    AddTensor(block, &stats);
  }
  return stats;
}

void PrintHeader(const CheckpointReader& reader) {
  const Manifest& manifest = reader.manifest();
  int64_t file_bytes = 0;
  int64_t elements = 0;
  for (const ShardEntry& shard : manifest.shards) file_bytes += shard.bytes;
  for (const TensorEntry& tensor : manifest.tensors) elements += tensor.shape.numel();
  absl::PrintF("checkpoint  %s\n", reader.directory());
  absl::PrintF("run         %s\n", manifest.run_id);
  absl::PrintF("iteration   %d\n", manifest.iteration);
  absl::PrintF("shards      %d, %s\n", manifest.shard_count, FormatBytes(file_bytes));
  absl::PrintF("tensors     %d, %d elements\n", manifest.tensors.size(), elements);
}

void PrintValues(const Manifest& manifest) {
  std::cout << "\n";
  for (const auto& entry : manifest.ints) absl::PrintF("%s = %d\n", entry.first, entry.second);
  for (const auto& entry : manifest.floats) absl::PrintF("%s = %g\n", entry.first, entry.second);
  for (const auto& entry : manifest.strings) {
    absl::PrintF("%s = \"%s\"\n", entry.first, entry.second);
  }
}

absl::Status PrintTensors(const CheckpointReader& reader) {
  std::cout << "\n";
  for (const TensorEntry& tensor : reader.manifest().tensors) {
    const int64_t bytes = tensor.shape.numel() * SizeOf(tensor.dtype);
    absl::PrintF("%-64s %-5s %-20s %10s", tensor.name, Name(tensor.dtype),
                 absl::StrCat("[", absl::StrJoin(tensor.shape, ", "), "]"), FormatBytes(bytes));
    if (absl::GetFlag(FLAGS_stats)) {
      MEGATRON_ASSIGN_OR_RETURN(const Stats stats, ComputeStats(reader, tensor));
      absl::PrintF("  norm %-12.6g mean %-13.6g least %-13.6g greatest %-13.6g not finite %d",
                   stats.norm(), stats.mean(), stats.least, stats.greatest, stats.not_finite);
    }
    std::cout << "\n";
  }
  return absl::OkStatus();
}

absl::Status VerifyAll(const CheckpointReader& reader) {
  const std::vector<absl::Status> errors = reader.Verify();
  for (const absl::Status& error : errors) std::cerr << error.message() << "\n";
  if (!errors.empty()) {
    return absl::DataLossError(absl::StrCat("'", reader.directory(), "' has ", errors.size(),
                                            " damaged ", errors.size() == 1 ? "part" : "parts"));
  }
  return absl::OkStatus();
}

// The least and the greatest of no values are null.
Json ToJson(const Stats& stats) {
  Json json = {{"norm", stats.norm()},
               {"mean", stats.mean()},
               {"least", nullptr},
               {"greatest", nullptr},
               {"not_finite", stats.not_finite}};
  if (stats.count > 0) {
    json["least"] = stats.least;
    json["greatest"] = stats.greatest;
  }
  return json;
}

absl::Status PrintJson(const CheckpointReader& reader) {
  const Manifest& manifest = reader.manifest();
  Json all = {{"checkpoint", reader.directory()}, {"run", manifest.run_id},
              {"iteration", manifest.iteration},  {"shards", Json::array()},
              {"tensors", Json::array()},         {"values", Json::object()}};
  if (absl::GetFlag(FLAGS_verify)) all["verified"] = true;
  for (const ShardEntry& shard : manifest.shards) all["shards"].push_back({{"bytes", shard.bytes}});
  for (const TensorEntry& tensor : manifest.tensors) {
    Json json = {{"name", tensor.name},
                 {"dtype", Name(tensor.dtype)},
                 {"shape", std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end())},
                 {"bytes", tensor.shape.numel() * SizeOf(tensor.dtype)}};
    if (absl::GetFlag(FLAGS_stats)) {
      MEGATRON_ASSIGN_OR_RETURN(const Stats stats, ComputeStats(reader, tensor));
      json["stats"] = ToJson(stats);
    }
    all["tensors"].push_back(std::move(json));
  }
  for (const auto& [name, value] : manifest.ints) all["values"][name] = value;
  for (const auto& [name, value] : manifest.floats) all["values"][name] = value;
  for (const auto& [name, value] : manifest.strings) all["values"][name] = value;
  // Paths need not be UTF-8.
  std::cout << all.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) << "\n";
  return absl::OkStatus();
}

absl::Status PrintText(const CheckpointReader& reader) {
  PrintHeader(reader);
  PrintValues(reader.manifest());
  // --verify comes first, so that --stats and --verify together report all the damage and not only
  // the first.
  if (absl::GetFlag(FLAGS_verify)) {
    MEGATRON_RETURN_IF_ERROR(VerifyAll(reader));
    std::cout << "\nverified: every byte agrees with its checksum\n";
  }
  return PrintTensors(reader);
}

// The argument may be one iteration's directory or the directory of all.
absl::StatusOr<std::string> FindDirectory(FileSystem& fs, const std::string& argument) {
  if (fs.Stat(JoinPath(argument, kManifestFileName)).ok()) return argument;
  MEGATRON_ASSIGN_OR_RETURN(const FoundCheckpoint found, FindLatestCheckpoint(fs, argument));
  for (const std::string& warning : found.warnings) std::cerr << "warning: " << warning << "\n";
  return found.directory;
}

absl::Status Main(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1) {
    return absl::InvalidArgumentError(
        "expected one argument, a checkpoint's directory or that of a run's checkpoints");
  }
  FileSystem& fs = PosixFileSystem();
  MEGATRON_ASSIGN_OR_RETURN(const std::string directory,
                            AsArgument(FindDirectory(fs, arguments[0])));
  MEGATRON_ASSIGN_OR_RETURN(const CheckpointReader reader, CheckpointReader::Open(fs, directory));
  if (!absl::GetFlag(FLAGS_json)) return PrintText(reader);
  if (absl::GetFlag(FLAGS_verify)) {
    MEGATRON_RETURN_IF_ERROR(VerifyAll(reader));
  }
  return PrintJson(reader);
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  const int code = megatron::RunTool(
      argc, argv,
      "Shows what is in a checkpoint: inspect_checkpoint --stats --verify run/iter_0001000, or the "
      "newest of a run: inspect_checkpoint run",
      megatron::Main);
  return code == megatron::kBadData ? megatron::kCorruptCheckpoint : code;
}
