// Helpers for tests of what becomes of scripts and of ds_config.json.
#ifndef MEGATRON_TOOLS_FROM_MEGATRON_FROM_MEGATRON_HARNESS_H_
#define MEGATRON_TOOLS_FROM_MEGATRON_FROM_MEGATRON_HARNESS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/from_megatron/findings.h"
#include "tools/from_megatron/from_megatron.h"

namespace megatron {

// A model that is complete but for what a test adds.
inline constexpr char kSmall[] =
    "torchrun --nproc_per_node 1 pretrain_gpt.py --num-layers 2 --hidden-size 64 "
    "--num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --micro-batch-size 2 "
    "--global-batch-size 4 --train-iters 100 --lr 1e-3 --eval-interval 10 --data-path data "
    "--data-cache-path cache --vocab-file vocab.json --merge-file merges.txt --split 9,1,0 ";

// Returns the content of a file of testdata.
std::string ReadTestFile(const std::string& name);

// Translates a script of testdata.
absl::StatusOr<FromMegatronResult> TranslateFile(const std::string& name,
                                                 const std::vector<std::string>& arguments = {});

// Translates a script of one line.
absl::StatusOr<FromMegatronResult> TranslateLine(const std::string& line);

// Returns the small model with more flags; fails the test on errors.
FromMegatronResult Small(const std::string& flags);

// Returns "subject: text" of the findings.
std::vector<std::string> Texts(const FromMegatronResult& result, Effect effect);

// Returns the subjects' first words.
std::vector<std::string> Subjects(const FromMegatronResult& result, Effect effect);

// Checks that the text is the configuration, and is valid or incomplete as the errors say.
void ExpectTextIsConfig(const FromMegatronResult& result);

// The whole output is compared, comments included.
void ExpectGolden(const absl::StatusOr<FromMegatronResult>& result, const std::string& name);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_FROM_MEGATRON_FROM_MEGATRON_HARNESS_H_
