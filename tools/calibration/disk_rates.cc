#include "tools/calibration/disk_rates.h"

#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/optim/state_file.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/tensor/dtype.h"
#include "tools/calibration/facts_text.h"

namespace megatron {
namespace {

constexpr int64_t kMostBytes = int64_t{64} << 20;
constexpr int kPasses = 3;
constexpr absl::string_view kOrigin = "# The disk's figures are measured in ";
constexpr absl::string_view kInMemory = "by the page cache";  // StateFile::method()

struct MeasuredDisk {
  double bytes_per_s = 0;  // of reading, and of writing meanwhile
  std::string method;
};

// Blocks that were only set aside read as zeros, without a disk: a first pass writes them.
absl::StatusOr<MeasuredDisk> Measure(const std::string& directory, int64_t elements, int64_t free) {
  StateFile file({DType::kFloat32, DType::kFloat32, DType::kFloat32}, elements,
                 StateFile::kExtentElements, Device(), nullptr);
  if (file.bytes() > free) {
    return absl::ResourceExhaustedError(absl::StrCat("the file to measure the disk with takes ",
                                                     FormatBytes(file.bytes()), " in '", directory,
                                                     "' and ", FormatBytes(free), " are free"));
  }
  MEGATRON_RETURN_IF_ERROR(file.Open(JoinPath(directory, absl::StrCat("disk_rates.", getpid()))));
  const auto pass = [&](StateFile::Access access) {
    file.StartPass(access);
    for (int64_t extent = 0; extent < file.num_extents(); ++extent) {
      if (!file.Enter(extent).ok()) break;
    }
    return file.EndPass();
  };
  MEGATRON_RETURN_IF_ERROR(pass(StateFile::Access::kWrite));
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kPasses; ++i) MEGATRON_RETURN_IF_ERROR(pass(StateFile::Access::kUpdate));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return MeasuredDisk{kPasses * double(file.bytes()) / seconds.count(), file.method()};
}

absl::StatusOr<Hardware> EntryOf(const PlanFacts& facts, const DiskRequest& request) {
  if (!request.name.empty()) {
    const absl::StatusOr<const Hardware*> found = FindHardware(facts, request.name);
    if (found.ok()) return **found;
    return absl::InvalidArgumentError(
        absl::StrCat(request.hardware, ": ", found.status().message()));
  }
  if (facts.hardware_size() == 1) return facts.hardware(0);
  return absl::InvalidArgumentError(absl::StrCat(request.hardware, " has ", facts.hardware_size(),
                                                 " entries of hardware: --name says which one "
                                                 "the disk belongs to"));
}

}  // namespace

absl::StatusOr<std::string> CalibrateDisk(FileSystem& fs, const DiskRequest& request) {
  MEGATRON_ASSIGN_OR_RETURN(std::string text, ReadFileToString(fs, request.hardware, kMostBytes));
  const absl::StatusOr<PlanFacts> facts = ParsePlanFacts(text);
  if (!facts.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.hardware, ": ", facts.status().message()));
  }
  MEGATRON_ASSIGN_OR_RETURN(Hardware hardware, EntryOf(*facts, request));
  MEGATRON_ASSIGN_OR_RETURN(const int64_t free, fs.FreeBytes(request.directory));
  MEGATRON_ASSIGN_OR_RETURN(const MeasuredDisk disk,
                            Measure(request.directory, request.elements, free));
  const double share = 1e-9 / double(request.ranks);
  hardware.set_disk_read_gb_per_s(disk.bytes_per_s * share);
  hardware.set_disk_write_gb_per_s(disk.bytes_per_s * share);
  hardware.set_disk_gb(double(free) * share);
  char resolved[PATH_MAX];
  const bool is_resolved = realpath(request.directory.c_str(), resolved) != nullptr;
  hardware.set_disk_directory(is_resolved ? std::string(resolved) : request.directory);
  if (absl::StartsWith(text, kOrigin)) text.erase(0, text.find('\n') + 1);
  text =
      absl::StrCat(kOrigin, request.directory, ", ", disk.method, ".\n", WithDisk(text, hardware));
  // What is written can be read.
  MEGATRON_RETURN_IF_ERROR(ParsePlanFacts(text).status());
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs, request.hardware, text));
  const bool is_direct = !absl::StrContains(disk.method, kInMemory);
  return absl::StrFormat(
      "%s: %s: %.3g GB/s read and as many written at the same time, %.4g GB free, for each of %d "
      "ranks (%s)%s",
      request.hardware, hardware.name(), hardware.disk_read_gb_per_s(), hardware.disk_gb(),
      request.ranks, disk.method,
      is_direct ? ""
                : "\nWARNING: this file system keeps files in memory, whose rates these may be");
}

}  // namespace megatron
