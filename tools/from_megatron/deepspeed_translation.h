// The translation of one ds_config.json, block by block.
#ifndef MEGATRON_TOOLS_FROM_MEGATRON_DEEPSPEED_TRANSLATION_H_
#define MEGATRON_TOOLS_FROM_MEGATRON_DEEPSPEED_TRANSLATION_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "tools/from_megatron/config_builder.h"
#include "tools/from_megatron/findings.h"

namespace megatron {

class DeepSpeedTranslation {
 public:
  // Sets fields of `config` and adds to `findings`. `source` is the name of the file, and
  // `data_parallel_size` is 0 if it is not known.
  DeepSpeedTranslation(absl::string_view source, int64_t data_parallel_size, ConfigBuilder* config,
                       Findings* findings)
      : source_(source), ranks_(data_parallel_size), config_(*config), findings_(*findings) {}

  absl::Status Apply(const nlohmann::json& object);

 private:
  using Json = nlohmann::json;

  absl::Status Wrong(absl::string_view key, absl::string_view what) const;
  void Find(Effect effect, const std::string& key, const Json& value, absl::string_view text);
  std::string Origin(absl::string_view key) const { return absl::StrCat(source_, " ", key); }
  // Sets the field to a number, a string or a bool.
  absl::Status Set(absl::string_view path, const std::string& key, const Json& value);
  absl::Status SetList(absl::string_view path, const std::string& key, const Json& list);

  static bool IsOff(const std::string& key, const Json& value);
  absl::Status ApplyEntry(const std::string& key, const Json& value);
  // Looks the key up in the table, and those below it.
  absl::Status ApplyRest(const std::string& key, const Json& value);
  // Factors matter where gradients are sent in 16 bits. Those of prescale_gradients stand in place
  // of gradient_predivide_factor.
  absl::Status ApplyCommunication(const Json& object);
  // DeepSpeed does not clip where the key is not there, whatever --clip-grad says.
  absl::Status ApplyClippingDefault(const Json& object);
  absl::Status ApplyFp16(const Json& block);
  absl::Status ApplyBf16(const Json& block);
  // DeepSpeed writes to output_path/job_name. Where no path is given, files are beside
  // metrics.jsonl.
  absl::Status ApplyTensorboard(const Json& block);
  // The batch sizes are computed with it; those that are written elsewhere are not used.
  absl::Status ApplyElasticity(const Json& block);
  // Reads a number of samples or steps; 0 if it is not there.
  absl::Status ReadCount(const Json& object, const char* key, int64_t* count);
  // global = micro * steps * ranks, of which any one may be missing.
  absl::Status ApplyBatch(const Json& object);

  absl::Status ApplyZero(const Json& block);
  // DeepSpeed reads the other keys only if there is a device.
  absl::Status ApplyOffloadOptimizer(const std::string& block_key, const Json& block);
  // `zero` is the block around it.
  absl::Status ApplyOffloadParam(const std::string& block_key, const Json& block, const Json& zero);
  // MiCS shards over groups of so many ranks; it is read when the number of ranks is known.
  absl::Status ApplyShardSize(const Json& object);

  absl::Status ApplyOptimizer(const Json& block);
  absl::Status ApplyScheduler(const Json& block);

  // Each schedule reads some keys of schedule_config.
  absl::Status ApplyCurriculum(const Json& block);
  absl::Status ApplyDataEfficiency(const Json& block);
  // The names of modules and the order of axes say how DeepSpeed finds the layers of a model.
  absl::Status ApplyRandomLtd(const std::string& key, const Json& routing);

  const absl::string_view source_;
  int64_t ranks_;
  bool is_elastic_ = false;
  ConfigBuilder& config_;
  Findings& findings_;
};

}  // namespace megatron

#endif  // MEGATRON_TOOLS_FROM_MEGATRON_DEEPSPEED_TRANSLATION_H_
