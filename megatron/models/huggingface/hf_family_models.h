// Small models of every family of decoders, for tests.
#ifndef MEGATRON_MODELS_HUGGINGFACE_HF_FAMILY_MODELS_H_
#define MEGATRON_MODELS_HUGGINGFACE_HF_FAMILY_MODELS_H_

#include <string>
#include <vector>

#include "megatron/models/model_options.h"

namespace megatron {

struct HfFamilyModel {
  std::string model_type;
  ModelOptions options;
  // What it is written as where no family is named; empty: as what it is.
  std::string first_type = "";

  const std::string& written_as() const { return first_type.empty() ? model_type : first_type; }
};

// Their sizes differ from each other, so that none can stand for another; biases, windows and
// experts are of all kinds that a family has.
std::vector<HfFamilyModel> HfFamilyModels();

}  // namespace megatron

#endif  // MEGATRON_MODELS_HUGGINGFACE_HF_FAMILY_MODELS_H_
