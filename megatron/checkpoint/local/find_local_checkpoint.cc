#include "megatron/checkpoint/local/find_local_checkpoint.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/checkpoint_directory.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/local/save_local_checkpoint.h"
#include "megatron/checkpoint/names.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {
namespace {

// Returns the text of every rank.
absl::StatusOr<std::vector<std::string>> GatherTexts(const ProcessGroup& ranks,
                                                     const std::string& mine) {
  const size_t size = static_cast<size_t>(ranks.size());
  int64_t length = static_cast<int64_t>(mine.size());
  std::vector<int64_t> lengths(size, length);
  ranks.AllGather(Tensor(&length, DType::kInt64, {1}),
                  Tensor(lengths.data(), DType::kInt64, {ranks.size()}), Stream::Inline());
  MEGATRON_RETURN_IF_ERROR(ranks.status());
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::string> texts(size);
  if (longest == 0) return texts;
  std::string padded = mine;
  padded.resize(static_cast<size_t>(longest));
  std::string all(size * padded.size(), '\0');
  if (size == 1) all = padded;
  ranks.AllGather(Tensor(padded.data(), DType::kUInt8, {longest}),
                  Tensor(all.data(), DType::kUInt8, {ranks.size() * longest}), Stream::Inline());
  MEGATRON_RETURN_IF_ERROR(ranks.status());
  for (size_t rank = 0; rank < size; ++rank)
    texts[rank] = all.substr(rank * padded.size(), static_cast<size_t>(lengths[rank]));
  return texts;
}

// Texts behind each other, each with its length in front.
void AppendText(const std::string& text, std::string* all) {
  absl::StrAppend(all, absl::Dec(text.size(), absl::kZeroPad16), text);
}

std::vector<std::string> SplitTexts(absl::string_view all) {
  constexpr size_t kDigits = 16;
  std::vector<std::string> texts;
  while (all.size() >= kDigits) {
    const size_t length = std::stoull(std::string(all.substr(0, kDigits)));
    texts.emplace_back(all.substr(kDigits, length));
    all.remove_prefix(std::min(all.size(), kDigits + length));
  }
  return texts;
}

// A shard on this machine: its manifest, if all is as that says.
absl::StatusOr<Manifest> CheckPart(FileSystem& fs, const std::string& directory,
                                   const std::string& part_name) {
  MEGATRON_ASSIGN_OR_RETURN(Manifest part, ReadManifest(fs, JoinPath(directory, part_name)));
  if (part.shards.size() != 1 ||
      part_name != PartFileName(part.shards[0].index, part.shard_count)) {
    return absl::DataLossError(absl::StrCat(part_name, " is the manifest of another shard"));
  }
  const CheckpointReader reader = CheckpointReader::OfParts(directory, part, [&](int shard) {
    return fs.OpenNoFollow(JoinPath(directory, ShardFileName(shard, part.shard_count)));
  });
  const std::vector<absl::Status> errors = reader.Verify();
  if (!errors.empty()) return errors[0];
  return part;
}

// Returns the manifests of the sound shards among those that this rank looks at: its share of what
// its machine has.
std::string SoundParts(FileSystem& fs, const std::string& directory, size_t place, size_t ranks) {
  std::string sound;
  const absl::StatusOr<std::vector<std::string>> names = fs.List(directory);
  if (!names.ok()) return sound;
  size_t number = 0;
  for (const std::string& name : *names) {
    int index = 0;
    if (!IsShardOrPartFileName(name) || ParseShardFileName(name, &index)) continue;
    if (number++ % ranks != place) continue;
    const absl::StatusOr<Manifest> part = CheckPart(fs, directory, name);
    if (part.ok()) AppendText(SerializeManifest(*part), &sound);
  }
  return sound;
}

// The shards of one save, of which each was found by some ranks.
struct Shards {
  int count = 0;
  std::map<int, Manifest> parts;
  std::map<int, std::vector<int>> holders;
};

// Returns the iterations of this machine's checkpoints, descending.
std::vector<int64_t> IterationsOf(FileSystem& fs, const std::string& directory) {
  std::vector<int64_t> iterations;
  const absl::StatusOr<std::vector<std::string>> names = fs.List(directory);
  if (!names.ok()) return iterations;
  for (const std::string& name : *names) {
    IterationDirectory parsed;
    if (ParseDirectoryName(name, &parsed) && parsed.kind == DirectoryKind::kFinal)
      iterations.push_back(parsed.iteration);
  }
  std::sort(iterations.rbegin(), iterations.rend());
  return iterations;
}

// Puts together what all ranks have found of an iteration, by the start that saved it.
std::map<std::string, Shards> BySave(const std::vector<std::string>& found,
                                     const std::string& run_id, int64_t iteration) {
  std::map<std::string, Shards> saves;
  for (size_t rank = 0; rank < found.size(); ++rank) {
    for (const std::string& text : SplitTexts(found[rank])) {
      absl::StatusOr<Manifest> part = ParseManifest(text);
      if (!part.ok() || part->run_id != run_id || part->iteration != iteration) continue;
      const auto start = part->strings.find(kLocalStart);
      if (start == part->strings.end()) continue;
      Shards& save = saves[absl::StrCat(start->second, " ", part->shard_count)];
      save.count = part->shard_count;
      const int index = part->shards[0].index;
      save.holders[index].push_back(static_cast<int>(rank));
      save.parts.emplace(index, *std::move(part));
    }
  }
  return saves;
}

absl::StatusOr<LocalCheckpoint> Join(Shards shards) {
  LocalCheckpoint checkpoint;
  std::vector<Manifest> parts;
  for (auto& [index, part] : shards.parts) {
    parts.push_back(std::move(part));
    checkpoint.holders.push_back(std::move(shards.holders[index]));
  }
  MEGATRON_ASSIGN_OR_RETURN(checkpoint.manifest, MergeParts(parts));
  MEGATRON_RETURN_IF_ERROR(CheckComplete(checkpoint.manifest));
  return checkpoint;
}

}  // namespace

absl::StatusOr<FoundLocalCheckpoint> FindLocalCheckpoint(FileSystem& fs, const LocalPlace& place,
                                                         const std::string& run_id,
                                                         int64_t newer_than,
                                                         const ProcessGroup& ranks) {
  const size_t me = static_cast<size_t>(ranks.rank());
  const std::vector<int> here = RanksOn(place.machines, place.machines[me]);
  const size_t mine =
      static_cast<size_t>(std::lower_bound(here.begin(), here.end(), ranks.rank()) - here.begin());
  FoundLocalCheckpoint found;
  for (int64_t below = std::numeric_limits<int64_t>::max();;) {
    int64_t iteration = -1;
    for (const int64_t there : IterationsOf(fs, place.directory)) {
      if (there < below && there > newer_than) iteration = std::max(iteration, there);
    }
    ranks.AllReduce(Tensor(&iteration, DType::kInt64, {1}), ReduceOp::kMax, Stream::Inline());
    MEGATRON_RETURN_IF_ERROR(ranks.status());
    if (iteration < 0) return found;
    below = iteration;
    const std::string directory = JoinPath(place.directory, DirectoryName(iteration));
    MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                              GatherTexts(ranks, SoundParts(fs, directory, mine, here.size())));
    std::string lacks = "no shard of it is sound";
    for (auto& [start, save] : BySave(texts, run_id, iteration)) {
      const size_t has = save.parts.size();
      const size_t count = static_cast<size_t>(save.count);
      lacks = absl::StrCat(has, " of its ", count, " shards are there and sound");
      if (has != count) continue;
      absl::StatusOr<LocalCheckpoint> joined = Join(std::move(save));
      if (!joined.ok()) {
        lacks = std::string(joined.status().message());
        continue;
      }
      joined->directory = directory;
      found.checkpoint = *std::move(joined);
      return found;
    }
    found.warnings.push_back(
        absl::StrCat("the local checkpoint of iteration ", iteration, " is not taken: ", lacks));
  }
}

}  // namespace megatron
