// An engine without a model, for tests of whoever uses one.
#ifndef MEGATRON_SERVE_SCRIPTED_ENGINE_H_
#define MEGATRON_SERVE_SCRIPTED_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "megatron/generate/text_engine.h"

namespace megatron::serve {

// The tokens are those of ByteLevelTokenizer. The likeliest one after a letter is the next letter
// of the alphabet; after "z" the end of the text; after "$" the three bytes of a euro sign, and
// then "a"; after all else "a". `delay` in milliseconds, which may change, is what a token takes.
std::unique_ptr<TextEngine> MakeScriptedEngine(int64_t max_context, int max_queue,
                                               const std::atomic<int>* delay);

}  // namespace megatron::serve

#endif  // MEGATRON_SERVE_SCRIPTED_ENGINE_H_
