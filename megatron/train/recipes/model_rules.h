// ModelRules: what a configuration means for one kind of model. It computes the fields that are
// unset, checks the fields, names the layers, and counts parameters and products.
//
// The configuration's own libraries call it, so it depends on no model and on no data; what needs
// those is in Recipe (recipe.h). model_rules_of.h finds the rules of a configured model.
#ifndef MEGATRON_TRAIN_RECIPES_MODEL_RULES_H_
#define MEGATRON_TRAIN_RECIPES_MODEL_RULES_H_

#include <cstdint>
#include <vector>

#include "megatron/models/model_kind.h"
#include "megatron/plan/model_costs.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

class ConfigChecker;

// The largest number of tokens of one sample.
struct SampleLengths {
  int64_t seq_length = 0;          // tokens for the stack that ends in the loss
  int64_t encoder_seq_length = 0;  // tokens for the encoder in front of it; 0: there is none
};

// The ways in which samples can be filled up with tokens that no loss counts, so that ranks can
// share them out evenly.
enum class SampleFilling {
  kNone,         // every sample has seq_length tokens
  kToSeqLength,  // a shorter sample is filled up, to at most seq_length tokens
  kToAnyLength,  // a sample is filled up to any number of tokens
};

// A stack of layers, and the path of the field that says how many there are.
struct StackLayers {
  const char* field;
  int64_t num_layers = 0;
};

class ModelRules {
 public:
  virtual ~ModelRules() = default;

  virtual ModelKind kind() const = 0;

  // Sets each unset field that only this kind has, or that it computes in its own way, if the
  // fields it follows from are set.
  virtual void ResolveDefaults(config::ModelConfig* model) const {}
  // Adds an error for each broken rule that only this kind has.
  virtual void Check(ConfigChecker& check) const = 0;

  virtual SampleFilling filling() const = 0;
  virtual SampleLengths LengthsOf(const config::ModelConfig& model) const {
    return {model.seq_length(), 0};
  }
  // Returns the stacks in the order in which the pipeline has them.
  virtual std::vector<StackLayers> StacksOf(const config::ModelConfig& model) const {
    return {{"model.num_layers", model.num_layers()}};
  }

  // The functions below expect a complete model (config_defaults.h). `padded_vocab_size` is the
  // vocabulary's size as the model holds it.

  // Counts every trained number, norms and biases included; a tied embedding counts once, and every
  // expert.
  virtual int64_t CountParameters(const config::ModelConfig& model,
                                  int64_t padded_vocab_size) const = 0;
  // Returns the products of each layer of all stacks, in order, for one sample of full length.
  virtual std::vector<MatrixProducts> ProductsOfLayers(const config::ModelConfig& model,
                                                       FlopsConvention convention) const = 0;
  // Returns the products behind the last layer, for one sample of full length.
  virtual MatrixProducts ProductsOfHead(const config::ModelConfig& model,
                                        int64_t padded_vocab_size) const = 0;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RECIPES_MODEL_RULES_H_
