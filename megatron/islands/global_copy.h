// The global copy of the weights that islands have in common, with its outer momentum: what the
// server of the outer optimizer (outer_server.h) holds, and keeps in a file.
//
// The elements of all tensors of the agreement lie one behind the other, in fp32. No layout of any
// island is in it.
//
// The file: "MGNOUTR1", the length of the header in 8 bytes; the header, which is the run, the
// round and the agreement; the elements of the copy, those of the momentum, and the CRC-32C of all
// before it.
//
// Threads: one at a time.
#ifndef MEGATRON_ISLANDS_GLOBAL_COPY_H_
#define MEGATRON_ISLANDS_GLOBAL_COPY_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "megatron/base/file_system.h"
#include "megatron/islands/island_protocol.h"

namespace megatron {

class GlobalCopy {
 public:
  // A copy of zeros. kInvalidArgument for more parameters than `most`, or none.
  static absl::StatusOr<GlobalCopy> Create(const IslandAgreement& agreement, int64_t most);

  const IslandAgreement& agreement() const { return agreement_; }
  int64_t elements() const { return static_cast<int64_t>(global_.size()); }

  // Copies the values of a block to their places among `all`, which has elements() of them, or
  // back. kInvalidArgument for a block that is not in the model.
  absl::Status Scatter(const TensorBlock& block, const float* values,
                       std::vector<float>* all) const;
  absl::Status Gather(const TensorBlock& block, std::string* values) const;

  // Takes the outer step with the mean of updates, and counts it.
  void Step(absl::Span<const float> gradient);

  std::vector<float>& global() { return global_; }
  const std::vector<float>& global() const { return global_; }
  // Empty where the agreement has none.
  std::vector<float>& momentum() { return momentum_; }

  uint64_t run = 0;    // 0: there is no copy yet
  int64_t round = -1;  // number of outer steps

  absl::Status Save(FileSystem& fs, const std::string& path) const;
  // kNotFound where there is no file; kDataLoss for one that is not whole.
  static absl::StatusOr<GlobalCopy> Load(FileSystem& fs, const std::string& path, int64_t most);

 private:
  struct Place {
    int64_t begin = 0;
    Shape shape;
  };
  // Calls run(index in the block, index in all, count) for the block's rows.
  template <typename Run>
  absl::Status ForEachRow(const TensorBlock& block, Run run) const;

  IslandAgreement agreement_;
  std::map<std::string, Place> places_;
  std::vector<float> global_, momentum_;
};

// Returns whether all elements are finite.
bool AllFinite(absl::Span<const float> values);

}  // namespace megatron

#endif  // MEGATRON_ISLANDS_GLOBAL_COPY_H_
