// The kinds of models. Each has a folder in models/ and a recipe in train/recipes/.
#ifndef MEGATRON_MODELS_MODEL_KIND_H_
#define MEGATRON_MODELS_MODEL_KIND_H_

namespace megatron {

enum class ModelKind {
  kGpt,   // a decoder that continues text
  kBert,  // an encoder that fills in masked tokens
  kT5,    // an encoder and a decoder that restores missing spans
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_MODEL_KIND_H_
