// The global copy of the weights that islands have in common, with its outer momentum: what the
// server of the outer optimizer (outer_server.h) holds, and keeps in a file.
//
// The elements are fp32, in the order of the model (model_order.h).
//
// The file: "MGNOUTR2", the length of the header in 8 bytes; the header, which is the run, the
// round, the number of rounds with noise and the agreement; the elements of the copy, those of the
// momentum, and the CRC-32C of all before it.
//
// Threads: one at a time.
#ifndef MEGATRON_ISLANDS_GLOBAL_COPY_H_
#define MEGATRON_ISLANDS_GLOBAL_COPY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "megatron/base/file_system.h"
#include "megatron/islands/island_protocol.h"
#include "megatron/islands/model_order.h"

namespace megatron {

class GlobalCopy {
 public:
  // A copy of zeros. kInvalidArgument for more parameters than `most`, or none.
  static absl::StatusOr<GlobalCopy> Create(const IslandAgreement& agreement, int64_t most);

  const IslandAgreement& agreement() const { return agreement_; }
  void set_federated(const FederatedOptions& federated) { agreement_.federated = federated; }
  int64_t elements() const { return static_cast<int64_t>(global_.size()); }

  // Copies the values of a block to their places among `all`, which has elements() of them, or
  // back. kInvalidArgument for a block that is not in the model. T is float or uint32_t.
  template <typename T>
  absl::Status Scatter(const TensorBlock& block, const T* values, std::vector<T>* all) const;
  absl::Status Gather(const TensorBlock& block, std::string* values) const;

  // Takes the outer step with the mean of updates, and counts it.
  void Step(absl::Span<const float> gradient);

  std::vector<float>& global() { return global_; }
  const std::vector<float>& global() const { return global_; }
  // Empty where the agreement has none.
  std::vector<float>& momentum() { return momentum_; }

  uint64_t run = 0;    // 0: there is no copy yet
  int64_t round = -1;  // number of outer steps
  // Number of those whose sum had noise, which the privacy budget counts.
  int64_t noised_rounds = 0;

  absl::Status Save(FileSystem& fs, const std::string& path) const;
  // Fails if Save cannot create its file there.
  static absl::Status CheckPath(FileSystem& fs, const std::string& path);
  // kNotFound where there is no file; kDataLoss for one that is not whole.
  static absl::StatusOr<GlobalCopy> Load(FileSystem& fs, const std::string& path, int64_t most);

 private:
  IslandAgreement agreement_;
  ModelOrder order_;
  std::vector<float> global_, momentum_;
};

// Returns whether all elements are finite.
bool AllFinite(absl::Span<const float> values);

}  // namespace megatron

#endif  // MEGATRON_ISLANDS_GLOBAL_COPY_H_
