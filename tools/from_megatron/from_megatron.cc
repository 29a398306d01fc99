#include "tools/from_megatron/from_megatron.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "megatron/base/quantity.h"
#include "megatron/base/quoted.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/config/config_error.h"
#include "megatron/train/config/config_nearest_name.h"
#include "megatron/train/validate/validate.h"
#include "tools/from_megatron/config_builder.h"
#include "tools/from_megatron/deepspeed_config.h"
#include "tools/from_megatron/flag.h"
#include "tools/from_megatron/flag_table.h"
#include "tools/from_megatron/shell_reader.h"
#include "tools/from_megatron/training_command.h"
#include "tools/from_megatron/zero_stage.h"

namespace megatron {
namespace {

constexpr size_t kMostErrors = 20;
constexpr size_t kMostFlags = 2000;

// The largest number of tokens that is read.
constexpr int64_t kMostTokens = int64_t{1} << 62;

class Translator {
 public:
  explicit Translator(const FromMegatronInput& input) : input_(input) {}

  absl::StatusOr<FromMegatronResult> Translate() {
    if (!input_.script.empty()) {
      MEGATRON_ASSIGN_OR_RETURN(script_,
                                ReadShell(input_.script, {input_.arguments, input_.variables}),
                                _ << "in " << input_.source);
      MEGATRON_ASSIGN_OR_RETURN(command_, FindTrainingCommand(script_),
                                _ << "in " << input_.source);
      for (const ShellNote& note : script_.notes)
        Find(Effect::kSaid, Where(note.line), "the script", note.text);
      ReadFlags();
    }
    MEGATRON_RETURN_IF_ERROR(Errors());
    MEGATRON_RETURN_IF_ERROR(ChooseModel());
    for (const Flag& flag : flags_) Apply(flag);
    ApplyGelu();
    ApplyLatentAttention();
    ApplySharding();
    ApplyLayout();
    MEGATRON_RETURN_IF_ERROR(ApplyDeepSpeed());
    ApplyTokens();
    KeepOptimizerOfOwnCheckpoints();
    if (!input_.script.empty()) ApplyDefaults();
    MEGATRON_RETURN_IF_ERROR(Errors());
    FromMegatronResult result;
    result.errors = Validate();
    LookAtTheRest();
    return Finish(std::move(result));
  }

 private:
  // Messages.

  std::string Where(int line) const { return absl::StrCat(input_.source, ":", line); }
  std::string Where(const Flag& flag) const { return Where(flag.line); }

  void Find(Effect effect, const std::string& where, const std::string& subject,
            absl::string_view text) {
    findings_.push_back({effect, where, subject, OneLine(text)});
  }
  void Find(Effect effect, const Flag& flag, absl::string_view text) {
    Find(effect, Where(flag), Shown(flag), text);
  }

  void Error(const Flag& flag, absl::string_view message) {
    errors_.push_back(absl::StrCat(Where(flag), ": ", Shown(flag), ": ", message));
  }

  absl::Status Errors() const {
    if (errors_.empty()) return absl::OkStatus();
    std::vector<std::string> shown(errors_.begin(),
                                   errors_.begin() + std::min(errors_.size(), kMostErrors));
    if (errors_.size() > shown.size())
      shown.push_back(absl::StrCat("and ", errors_.size() - shown.size(), " more"));
    return absl::InvalidArgumentError(absl::StrJoin(shown, "\n"));
  }

  // Flags.

  void ReadFlags() {
    for (const ShellWord& word : command_.flags) {
      absl::string_view text = word.text;
      if (text == "--") continue;
      if (absl::ConsumePrefix(&text, "--") && !text.empty()) {
        Flag flag;
        flag.line = word.line;
        const size_t equals = text.find('=');
        flag.name = absl::StrReplaceAll(text.substr(0, equals), {{"_", "-"}});
        if (equals != absl::string_view::npos) {
          flag.values.emplace_back(text.substr(equals + 1));
          flag.unset.push_back(word.unset);
        }
        flags_.push_back(std::move(flag));
      } else if (!flags_.empty() && !StandsAlone(word)) {
        flags_.back().values.push_back(word.text);
        flags_.back().unset.push_back(word.unset);
      } else {
        const std::string subject = Shortened(OneLine(word.text));
        Find(word.unset.empty() ? Effect::kResults : Effect::kSaid, Where(word.line), subject,
             word.unset.empty()
                 ? "it is no flag"
                 : absl::StrCat("it is ", script_.unset.at(word.unset), ": taken as empty"));
      }
    }
    // argparse takes the last one of several.
    std::map<std::string, const Flag*> last;
    for (const Flag& flag : flags_) last[flag.name] = &flag;
    std::vector<Flag> kept;
    for (const Flag& flag : flags_) {
      const Flag& later = *last[flag.name];
      if (&later == &flag) {
        kept.push_back(flag);
      } else if (later.values != flag.values) {
        Find(Effect::kSaid, flag, absl::StrCat("it is given again at line ", later.line));
      }
    }
    flags_ = std::move(kept);
    if (flags_.size() > kMostFlags)
      errors_.push_back(absl::StrCat(Where(command_.line), " has ", flags_.size(), " flags"));
  }

  // "$EXTRA_ARGS" behind a switch is no value of it.
  bool StandsAlone(const ShellWord& word) const {
    if (word.unset.empty() || word.text != absl::StrCat("$", word.unset)) return false;
    const Flag& flag = flags_.back();
    const std::string path = FindField(flag.name);
    if (!flag.values.empty()) return true;
    if (!FindRows(flag.name, "").empty()) return !FindRows(flag.name, "")[0]->sets.empty();
    ConfigBuilder builder;
    return !path.empty() && builder.Set(path, {}, "").ok();
  }

  const Flag* Given(absl::string_view name) const {
    for (const Flag& flag : flags_) {
      if (flag.name == name) return &flag;
    }
    return nullptr;
  }

  absl::Status ChooseModel() {
    std::string model = input_.model;
    const std::string program = absl::AsciiStrToLower(command_.program);
    // Megatron's hybrid models are GPTs here.
    constexpr std::pair<const char*, const char*> kModels[] = {
        {"gpt", "gpt"}, {"bert", "bert"}, {"t5", "t5"}, {"mamba", "gpt"}, {"hybrid", "gpt"}};
    for (const auto& [name, kind] : kModels) {
      if (model.empty() && absl::StrContains(program, name)) model = kind;
    }
    if (model.empty() && absl::StartsWith(program, "pretrain")) {
      Find(Effect::kResults, Where(command_.line), command_.program,
           "the models are GPT, BERT and T5; this takes it as a GPT");
      model = "gpt";
    }
    if (model.empty() && Given("decoder-num-layers") != nullptr) model = "t5";
    if (model.empty()) {
      model = "gpt";
      if (!input_.script.empty()) {
        Find(Effect::kSaid, Where(command_.line), "the model",
             "the command does not name it: taken as a GPT; --model=bert or --model=t5 says "
             "another");
      }
    }
    model_ = model;
    const absl::Status status =
        config_.Set("model.model_type", {model}, command_.program.empty() ? "" : command_.program);
    if (status.ok()) return status;
    return absl::InvalidArgumentError("--model is none of gpt, bert and t5");
  }

  void Apply(const Flag& flag) {
    // It may stand behind the flag that gives the activation.
    if (flag.name == "no-bias-gelu-fusion" && HasOtherActivation())
      return Find(Effect::kNothing, flag, "the activation is none that it is about");
    const std::string value = absl::StrJoin(flag.values, " ");
    const std::vector<const FlagRow*> rows = FindRows(flag.name, value);
    for (const FlagRow* row : rows) {
      if (!row->path.empty()) {
        SetField(
            flag, row->path,
            row->sets.empty() ? flag.values : std::vector<std::string>{std::string(row->sets)});
        if (!row->sets.empty() && row->value.empty() && !flag.values.empty() && rows.size() == 1)
          Error(flag, "takes no value");
      }
      if (!row->why.empty() && row->why != kReadWithOthers) Find(row->effect, flag, row->why);
    }
    if (!rows.empty()) return;
    const std::string path = FindField(flag.name);
    // Scripts give the sizes in quotes or without.
    if (path == "train.step_batch_size_schedule") return SetField(flag, path, {value});
    if (path == "model.window_size") return SetWindow(flag);
    if (path == "model.kv_channels" && Given("multi-latent-attention") != nullptr)
      return Find(Effect::kNothing, flag, "the heads of latent attention have widths of their own");
    if (!path.empty()) return SetField(flag, path, flag.values);
    const std::string nearest = NearestName(flag.name, KnownFlags());
    Find(Effect::kResults, flag,
         absl::StrCat("no flag of that name is known",
                      nearest.empty() ? "" : absl::StrCat("; the nearest is --", nearest)));
  }

  void SetField(const Flag& flag, absl::string_view path, const std::vector<std::string>& values) {
    for (const std::string& unset : flag.unset) {
      if (unset.empty() || values != flag.values) continue;
      const std::string message = absl::StrCat(
          "the value is ", script_.unset.at(unset),
          absl::ascii_isdigit(unset[0]) ? "; give the script's arguments behind its name"
                                        : absl::StrCat("; give it by --variables=", unset, "=..."));
      if (!HoldsText(path)) return Error(flag, message);
      to_do_[std::string(path)] = {Effect::kToDo, Where(flag), Shown(flag),
                                   OneLine(absl::StrCat(message, ", or write it into ", path))};
    }
    if (config_.IsSet(path) && config_.Origin(path) != OriginOf(flag))
      Find(Effect::kSaid, flag, absl::StrCat("it replaces ", path, " of ", config_.Origin(path)));
    const absl::Status status = config_.Set(path, values, OriginOf(flag));
    const bool recomputes = absl::StartsWith(path, "recompute.");
    if (absl::IsNotFound(status) && recomputes && values.size() > 1)
      return SetKnownModules(flag, path, values);
    if (absl::IsNotFound(status)) {
      return Find(recomputes || ChoosesKernels(path) ? Effect::kSpeed : Effect::kResults, flag,
                  status.message());
    }
    if (!status.ok()) Error(flag, status.message());
  }

  // Recomputation changes no result, so that modules without a counterpart may be kept.
  void SetKnownModules(const Flag& flag, absl::string_view path,
                       const std::vector<std::string>& values) {
    std::vector<std::string> known;
    for (const std::string& value : values) {
      ConfigBuilder builder;
      if (builder.Set(path, {value}, "").ok()) {
        known.push_back(value);
      } else {
        Find(Effect::kSpeed, flag, absl::StrCat(Quoted(value), " is kept, not computed again"));
      }
    }
    if (!known.empty()) SetField(flag, path, known);
  }

  std::string OriginOf(const Flag& flag) const {
    return absl::StrCat(Where(flag), " --", OneLine(flag.name));
  }

  static bool HoldsText(absl::string_view path) {
    ConfigBuilder builder;
    return builder.Set(path, {"$"}, "").ok();
  }

  // Megatron says how many keys before and behind it a query sees; -1 says all.
  void SetWindow(const Flag& flag) {
    const std::string text =
        absl::StrReplaceAll(absl::StrJoin(flag.values, ""), {{"(", ""}, {")", ""}, {" ", ""}});
    const std::vector<std::string> ends = absl::StrSplit(text, ',');
    int64_t before, behind;
    if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &before) ||
        !absl::SimpleAtoi(ends[1], &behind)) {
      return Error(flag, "expects two numbers, as 127,0");
    }
    if (behind > 0 || before == 0)
      return Find(Effect::kResults, flag, "a query sees itself and keys before it");
    if (before > 0) Put("model.window_size", before, OriginOf(flag));
  }

  // Sets a field to what has been computed. `ConfigBuilder` takes every such value.
  void Put(absl::string_view path, const std::string& value, absl::string_view origin) {
    const absl::Status status = config_.Set(path, {value}, origin);
    if (!status.ok()) errors_.push_back(absl::StrCat(path, " ", status.message()));
  }
  void Put(absl::string_view path, int64_t value, absl::string_view origin) {
    Put(path, absl::StrCat(value), origin);
  }

  // Flags that depend on others.

  bool HasOtherActivation() const {
    return Given("swiglu") != nullptr || Given("squared-relu") != nullptr ||
           Given("quick-geglu") != nullptr;
  }

  // Megatron fuses GELU with a bias alone, and switches the fusion off where layers have none.
  void ApplyGelu() {
    const Flag* const flag = Given("disable-bias-linear");
    if (flag == nullptr || !config_.config().model().disable_bias_linear() ||
        HasOtherActivation() || config_.IsSet("model.activation_func"))
      return;
    Put("model.activation_func", "gelu_erf", OriginOf(*flag));
    Find(Effect::kSaid, *flag,
         "Megatron computes the exact GELU without biases, and GELU by tanh with them");
  }

  // Megatron's latent attention has YaRN, unless --rope-type says otherwise, with flags of its own.
  void ApplyLatentAttention() {
    const Flag* const latent = Given("multi-latent-attention");
    const Flag* const type = Given("rope-type");
    const bool is_plain = type != nullptr && absl::StrJoin(type->values, " ") == "rope";
    if (latent == nullptr) {
      if (type != nullptr && !is_plain)
        Find(Effect::kNothing, *type, "position_embedding_type says it");
      return;
    }
    Put("model.position_embedding_type", is_plain ? "rope" : "yarn",
        OriginOf(type != nullptr ? *type : *latent));
    const std::pair<absl::string_view, absl::string_view> fields[] = {
        {"rotary-scaling-factor", "model.yarn_rotary_scaling_factor"},
        {"mscale", "model.yarn_mscale"},
        {"mscale-all-dim", "model.yarn_mscale_all_dim"}};
    for (const auto& [name, path] : fields) {
      const Flag* const flag = Given(name);
      if (flag == nullptr) continue;
      if (is_plain) {
        Find(Effect::kNothing, *flag, "positions are not scaled");
      } else {
        SetField(*flag, path, flag->values);
      }
    }
  }

  // Megatron shards gradients and weights by its FSDP or by PyTorch's.
  void ApplySharding() {
    const Flag* fsdp = Given("use-megatron-fsdp");
    if (fsdp == nullptr) fsdp = Given("use-custom-fsdp");
    const Flag* const torch = Given("use-torch-fsdp2");
    const Flag* const strategy = Given("data-parallel-sharding-strategy");
    if (const Flag* const stage = Given("zero-stage")) {
      int64_t number;
      if (stage->values.size() != 1 || !absl::SimpleAtoi(stage->values[0], &number) || number < 0 ||
          number > 3) {
        return Error(*stage, "expects 0, 1, 2 or 3");
      }
      const absl::Status status = SetZeroStage(number, OriginOf(*stage), &config_);
      if (!status.ok()) Error(*stage, status.message());
    }
    if (fsdp == nullptr && torch == nullptr) {
      if (strategy != nullptr)
        Find(Effect::kNothing, *strategy, "it has no effect without --use-megatron-fsdp");
      return;
    }
    const Flag& by = fsdp != nullptr ? *fsdp : *torch;
    const bool keeps = torch != nullptr && Given("torch-fsdp2-no-reshard-after-forward") != nullptr;
    std::string shared = keeps ? "optim_grads" : "optim_grads_params";
    if (strategy != nullptr && fsdp != nullptr) shared = absl::StrJoin(strategy->values, " ");
    const std::string origin = strategy != nullptr ? OriginOf(*strategy) : OriginOf(by);
    if (shared == "no_shard") return Put("parallel.use_distributed_optimizer", "false", origin);
    Put("parallel.use_distributed_optimizer", "true", OriginOf(by));
    const absl::Status status =
        config_.Set("parallel.data_parallel_sharding_strategy", {shared}, origin);
    if (!status.ok()) Error(strategy != nullptr ? *strategy : by, status.message());
  }

  // Megatron divides the processes by the sizes of the other axes.
  void ApplyLayout() {
    const config::ParallelConfig parallel = config_.config().parallel();
    int64_t others = 1;
    for (const int64_t size :
         {parallel.tensor_model_parallel_size(), parallel.pipeline_model_parallel_size(),
          parallel.context_parallel_size()}) {
      if (size < 1 || size > (1 << 20)) return;  // the validation says so
      others *= size;
    }
    const int64_t world = input_.world_size > 0 ? input_.world_size : command_.world_size;
    const std::string source = input_.world_size > 0
                                   ? "--world_size"
                                   : absl::StrCat(Where(command_.line), ", ", command_.launched);
    if (world > 0 && world % others == 0) {
      data_parallel_size_ = world / others;
      Put("parallel.data_parallel_size", data_parallel_size_,
          absl::StrCat(FormatQuantity(world, "rank"), " (", source, ") / ", others));
    } else if (world > 0) {
      errors_.push_back(absl::StrCat(
          source, ": ", FormatQuantity(world, "rank"), " cannot be shared out over a layout of ",
          others, " (tensor x pipeline x context), nor by Megatron; --world_size=", others,
          " says another number"));
    } else if (!input_.script.empty() && input_.deepspeed.empty()) {
      Find(Effect::kSaid, Where(command_.line), "the number of ranks",
           absl::StrCat("the command does not say it: data_parallel_size is 1, and the run has ",
                        FormatQuantity(others, "rank"), "; --world_size says another number"));
    }
    // Megatron's padding grows with the tensor-parallel ranks.
    const int64_t tensor = parallel.tensor_model_parallel_size();
    const int64_t multiple = config_.config().model().make_vocab_size_divisible_by();
    if (tensor > 1 && multiple >= 1 && multiple <= (1 << 20)) {
      Put("model.make_vocab_size_divisible_by", multiple * tensor,
          absl::StrCat("Megatron's ", multiple, " times ", tensor, " tensor-parallel ranks"));
    }
  }

  absl::Status ApplyDeepSpeed() {
    std::string text = input_.deepspeed;
    std::string source = input_.deepspeed_source;
    const Flag* const named = Given("deepspeed-config");
    if (named != nullptr && text.empty()) {
      const std::string name = absl::StrJoin(named->values, " ");
      const auto written = script_.files.find(name);
      if (written == script_.files.end()) {
        return absl::InvalidArgumentError(absl::StrCat(
            Where(*named), ": ", Shown(*named), ": give this file by --deepspeed_config=FILE"));
      }
      text = written->second;
      source = name;
    }
    if (text.empty()) return absl::OkStatus();
    return ApplyDeepSpeedConfig(text, source, data_parallel_size_, &config_, &findings_);
  }

  // Megatron-DeepSpeed's lengths in tokens become lengths in samples.
  void ApplyTokens() {
    for (const auto& [name, path] :
         {std::pair<const char*, const char*>{"train-tokens", "train.train_samples"},
          {"lr-decay-tokens", "optimizer.lr_decay_samples"},
          {"lr-warmup-tokens", "optimizer.lr_warmup_samples"}}) {
      const Flag* const flag = Given(name);
      if (flag == nullptr || config_.IsSet(path)) continue;
      const int64_t seq_length = config_.config().model().seq_length();
      int64_t tokens;
      const std::string text = absl::StrJoin(flag->values, " ");
      const std::string unset = flag->unset.empty() ? "" : flag->unset[0];
      if (!unset.empty()) {
        Error(*flag, absl::StrCat("the value is ", script_.unset.at(unset)));
      } else if (!absl::SimpleAtoi(text, &tokens) || tokens < 0 || tokens > kMostTokens) {
        Error(*flag, absl::StrCat("expects a whole number of at most ", kMostTokens));
      } else if (seq_length < 1) {
        Error(*flag, "needs --seq-length");
      } else {
        Put(path, tokens / seq_length, OriginOf(*flag));
        Find(Effect::kSaid, *flag,
             absl::StrCat("it is ", FormatQuantity(tokens / seq_length, "sample"), " of ",
                          FormatQuantity(seq_length, "token")));
      }
    }
  }

  // Scripts load from where they save, and begin with --no-load-optim. Megatron then drops the
  // optimizer's state whenever the script is started again.
  void KeepOptimizerOfOwnCheckpoints() {
    const config::CheckpointConfig checkpoint = config_.config().checkpoint();
    const Flag* const flag = Given("no-load-optim");
    if (flag == nullptr || !checkpoint.no_load_optim() || !checkpoint.has_save()) return;
    if (checkpoint.has_load() && checkpoint.load() != checkpoint.save()) return;
    config_.Clear("checkpoint.no_load_optim");
    Find(Effect::kSaid, *flag,
         "a run continues its own checkpoints with the optimizer's state; to begin without that of "
         "another run's checkpoint, give checkpoint.load and checkpoint.no_load_optim");
  }

  void ApplyDefaults() {
    for (const DefaultRow& row : DefaultRows()) {
      if (config_.IsSet(row.path)) continue;
      const absl::string_view value = model_ == "bert" ? row.bert
                                      : model_ == "t5" ? row.t5
                                                       : row.gpt;
      Put(row.path, std::string(value), absl::StrCat("Megatron's default; here it is ", row.ours));
      defaults_.emplace_back(row.path);
    }
    const config::ParallelConfig parallel = config_.config().parallel();
    if (parallel.overlap_grad_reduce() && !config_.IsSet("parallel.ddp_bucket_size")) {
      const int64_t ranks = std::max<int64_t>(data_parallel_size_, 1);
      Put("parallel.ddp_bucket_size", std::max<int64_t>(40000000, 1000000 * ranks),
          "Megatron's default; here it is 0");
      defaults_.emplace_back("parallel.ddp_bucket_size");
    }
  }

  // Validation.

  // Fields that choose kernels. A kernel that cannot be had is left out.
  static bool ChoosesKernels(absl::string_view path) {
    return path == "system.attention_backend" || path == "system.cuda_graph_impl" ||
           path == "system.cuda_graph_warmup_steps";
  }

  // Removes the fields that have no effect in this run, which the programs refuse and Megatron
  // accepts. Returns the errors that are left.
  std::vector<std::string> Validate() {
    while (true) {
      std::vector<std::string> errors;
      std::vector<std::string> removed;
      for (const ConfigError& error :
           megatron::Validate(config_.config(), config_.Locations(), ConfigPurpose::kDryRun)) {
        const bool no_effect = absl::StartsWith(error.message, "has no effect");
        if (!error.field.empty() && config_.IsSet(error.field) &&
            (no_effect || ChoosesKernels(error.field))) {
          const bool by_default =
              std::find(defaults_.begin(), defaults_.end(), error.field) != defaults_.end();
          // Where a kernel would compute nothing, another one computes all.
          const bool rounds = !no_effect || error.field == "system.attention_backend";
          if (!by_default) {
            Find(rounds ? Effect::kRounding : Effect::kNothing, config_.Origin(error.field),
                 error.field,
                 absl::string_view(error.message).substr(0, error.message.find("; --set")));
          }
          removed.push_back(error.field);
        } else {
          errors.push_back(ToString(error));
        }
      }
      if (removed.empty()) return errors;
      for (const std::string& path : removed) config_.Clear(path);
    }
  }

  // Finds what the validation cannot know.
  void LookAtTheRest() {
    const config::PretrainConfig config = config_.config();
    const config::CheckpointConfig& checkpoint = config.checkpoint();
    const auto origin = [&](const char* path) { return config_.Origin(path); };
    for (const auto& [path, finding] : to_do_) {
      if (config_.IsSet(path)) findings_.push_back(finding);
    }
    if (input_.script.empty()) {
      Find(Effect::kToDo, "", "the model, the data and the length of the run",
           "they are not in a ds_config.json; give the command line, too, or write them");
      return;
    }
    if (checkpoint.has_load() && checkpoint.load() != checkpoint.save()) {
      Find(
          Effect::kSaid, origin("checkpoint.load"), "checkpoint.load",
          "it must hold a checkpoint of this project (tools/torch_checkpoint:import_megatron makes "
          "one of Megatron's, tools:import_hf of a Hugging Face model), and counts only until "
          "checkpoint.save holds one");
    } else if (checkpoint.has_load()) {
      Find(Effect::kSaid, origin("checkpoint.load"), "checkpoint.load",
           "Megatron's checkpoints are read by tools/torch_checkpoint:import_megatron; a directory "
           "without a checkpoint of this project starts anew");
    } else if (checkpoint.has_save()) {
      Find(Effect::kDefault, origin("checkpoint.save"), "--load",
           "a run continues from checkpoint.save by itself; Megatron starts anew without --load");
    }
    if (config.data().tokenizer_type() == config::Tokenizer::HuggingFaceTokenizer) {
      Find(Effect::kToDo, origin("data.tokenizer_model"), "data.tokenizer_model",
           "it must be a tokenizer.json or its directory; nothing is downloaded by name");
    }
    if (Given("eval-interval") == nullptr) {
      Find(Effect::kDefault, "", "--eval-interval",
           "it is 1000, as in older Megatrons; the newest have no default");
    }
    if (Given("data-cache-path") == nullptr && config.data().data_path_size() > 0) {
      Find(Effect::kDefault, "", "--data-cache-path",
           "the order of samples is computed in memory; Megatron writes it beside the data");
    }
  }

  absl::StatusOr<FromMegatronResult> Finish(FromMegatronResult result) {
    result.config = config_.config();
    std::stable_sort(findings_.begin(), findings_.end(),
                     [](const Finding& a, const Finding& b) { return a.effect < b.effect; });
    const bool same = std::none_of(findings_.begin(), findings_.end(), [](const Finding& finding) {
      return finding.effect == Effect::kResults;
    });
    result.is_same_run = same && result.errors.empty();
    result.report = FindingsReport(findings_, result.errors);
    const std::string source = input_.script.empty() ? input_.deepspeed_source : input_.source;
    result.text =
        absl::StrCat("# Made from ", OneLine(source), " by from_megatron. It runs by\n#",
                     "   bazel run //megatron/train:pretrain_", model_, " -- --config=FILE\n");
    for (const absl::string_view line :
         absl::StrSplit(absl::StripSuffix(result.report, "\n"), '\n'))
      absl::StrAppend(&result.text, line.empty() ? "#" : "# ", line, "\n");
    absl::StrAppend(&result.text, "\n", config_.Text());
    result.findings = std::move(findings_);
    return result;
  }

  const FromMegatronInput& input_;
  ShellScript script_;
  TrainingCommand command_;
  std::string model_;
  std::vector<Flag> flags_;
  int64_t data_parallel_size_ = 0;  // 0: not known
  ConfigBuilder config_;
  std::vector<std::string> defaults_;     // the fields that have Megatron's default
  std::map<std::string, Finding> to_do_;  // by the field that waits for a value
  Findings findings_;
  std::vector<std::string> errors_;
};

}  // namespace

absl::StatusOr<FromMegatronResult> FromMegatron(const FromMegatronInput& input) {
  return Translator(input).Translate();
}

}  // namespace megatron
