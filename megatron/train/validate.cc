#include "megatron/train/validate.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "megatron/train/config_defaults.h"
#include "megatron/train/config_paths.h"
#include "megatron/train/config_ranges.h"

namespace megatron {
namespace {

using google::protobuf::FieldDescriptor;

constexpr double kMostTokens = 9e18;          // of a run, in 64 bits
constexpr double kWidestAttention = 1 << 22;  // num_attention_heads * kv_channels
constexpr int kMostSplits = 3;

class Validator {
 public:
  Validator(const config::PretrainConfig& config, const ConfigLocations& locations)
      : raw_(config), resolved_(config), locations_(locations) {
    ResolveDefaults(&resolved_);
  }

  std::vector<ConfigError> Run(ConfigPurpose purpose) {
    CheckRanges();
    CheckRequired();
    CheckHeads();
    CheckPositions();
    CheckNetworkChoices();
    CheckLayout();
    CheckPrecision();
    CheckRecompute();
    CheckLearningRate();
    CheckOptimizer();
    CheckBatch();
    CheckRampup();
    CheckData();
    CheckCheckpoint();
    CheckGeneration();
    if (purpose == ConfigPurpose::kRun) CheckThatItCanRun();
    return std::move(errors_);
  }

 private:
  FieldRef Ref(absl::string_view path) const { return Resolve(resolved_, path); }
  bool IsWritten(absl::string_view path) const { return IsPresent(Resolve(raw_, path)); }

  bool HasValue(absl::string_view path) const {
    const FieldRef ref = Ref(path);
    return IsPresent(ref) || ref.field->has_default_value() || ref.field->is_repeated();
  }

  // Whether a rule over these fields can be judged: each has a value that is right when taken
  // alone.
  bool Usable(std::initializer_list<absl::string_view> paths) const {
    return std::all_of(paths.begin(), paths.end(), [this](absl::string_view path) {
      return HasValue(path) && !locations_.IsBroken(path) && !out_of_range_.contains(path);
    });
  }

  void Error(absl::string_view path, absl::string_view message) {
    const FieldRef ref = Ref(path);
    const bool shown = HasValue(path) && !(ref.field->is_repeated() && !IsPresent(ref));
    errors_.push_back({locations_.Where(path), std::string(path), shown ? ValueText(ref) : "",
                       std::string(message)});
  }

  // "model.hidden_size = 768 (gpt.textproto:4:3)".
  std::string Named(absl::string_view path) const {
    const char* const unwritten = IsPresent(Ref(path)) ? "computed" : "default";
    return absl::StrCat(path, " = ", ValueText(Ref(path)), " (",
                        locations_.IsSet(path) ? locations_.Where(path) : unwritten, ")");
  }

  bool IsDefault(absl::string_view path) const {
    const FieldRef ref = Resolve(raw_, path);
    if (!IsPresent(ref)) return true;
    const google::protobuf::Message& empty =
        *ref.message->GetReflection()->GetMessageFactory()->GetPrototype(
            ref.message->GetDescriptor());
    return ref.field->has_default_value() && ValueText(ref) == ValueText({&empty, ref.field});
  }

  void MustDivide(absl::string_view divisor, absl::string_view path, int64_t divisor_value,
                  int64_t value) {
    if (Usable({divisor, path}) && value % divisor_value != 0) {
      Error(path, absl::StrCat("must be divisible by ", Named(divisor)));
    }
  }

  // A field that was moved off its default and that nothing will read is a mistake worth telling.
  void HaveNoEffect(std::initializer_list<absl::string_view> paths, absl::string_view because) {
    for (absl::string_view path : paths) {
      if (!IsDefault(path)) Error(path, absl::StrCat("has no effect ", because));
    }
  }

  void CheckRanges() {
    for (const std::string& path : LeafPaths(*config::PretrainConfig::descriptor())) {
      const FieldRef ref = Resolve(raw_, path);
      if (!IsPresent(ref) || ref.field->is_repeated() || locations_.IsBroken(path)) continue;
      const google::protobuf::Reflection& reflection = *ref.message->GetReflection();
      double value;
      if (ref.field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
        value = reflection.GetDouble(*ref.message, ref.field);
      } else if (ref.field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
        value = static_cast<double>(reflection.GetInt64(*ref.message, ref.field));
      } else {
        continue;
      }
      if (RangeOf(path).Contains(value)) continue;
      Error(path, absl::StrCat("expects ", DescribeAccepted(*ref.field, path)));
      out_of_range_.insert(path);
    }
  }

  void CheckRequired() {
    for (absl::string_view path :
         {"model.num_layers", "model.hidden_size", "model.num_attention_heads", "model.seq_length",
          "optimizer.lr", "training.micro_batch_size", "training.train_iters"}) {
      if (!IsWritten(path) && !locations_.IsBroken(path)) {
        Error(path, absl::StrCat("is required: ", DescribeAccepted(*Ref(path).field, path)));
      }
    }
  }

  void CheckHeads() {
    const config::ModelConfig& model = resolved_.model();
    if (!raw_.model().has_kv_channels() &&
        Usable({"model.hidden_size", "model.num_attention_heads"}) &&
        model.hidden_size() % model.num_attention_heads() != 0) {
      Error("model.hidden_size",
            absl::StrCat("must be divisible by ", Named("model.num_attention_heads"),
                         ", or model.kv_channels be set"));
    }
    if (Usable({"model.num_attention_heads", "model.kv_channels"}) &&
        static_cast<double>(model.num_attention_heads()) * model.kv_channels() > kWidestAttention) {
      Error("model.num_attention_heads",
            absl::StrCat("times ", Named("model.kv_channels"), " must be at most ",
                         static_cast<int64_t>(kWidestAttention)));
    }
    if (!model.group_query_attention()) {
      if (IsWritten("model.num_query_groups") &&
          model.num_query_groups() != model.num_attention_heads()) {
        Error("model.num_query_groups",
              absl::StrCat(
                  "needs model.group_query_attention: true; without it there are as many as ",
                  Named("model.num_attention_heads")));
      }
    } else if (!IsWritten("model.num_query_groups")) {
      if (!locations_.IsBroken("model.num_query_groups"))
        Error("model.group_query_attention", "needs model.num_query_groups");
    } else {
      MustDivide("model.num_query_groups", "model.num_attention_heads", model.num_query_groups(),
                 model.num_attention_heads());
    }
  }

  void CheckPositions() {
    const config::ModelConfig& model = resolved_.model();
    if (Usable({"model.seq_length", "model.max_position_embeddings"}) &&
        model.seq_length() > model.max_position_embeddings()) {
      Error("model.max_position_embeddings",
            absl::StrCat("must be at least ", Named("model.seq_length")));
    }
    if (model.position_embedding_type() != config::PositionEmbedding::rope) {
      HaveNoEffect({"model.rotary_base", "model.rotary_percent", "model.rotary_interleaved",
                    "model.rotary_seq_len_interpolation_factor", "model.use_rope_scaling",
                    "model.rope_scaling_factor"},
                   absl::StrCat("with ", Named("model.position_embedding_type")));
      return;
    }
    if (!model.use_rope_scaling()) {
      HaveNoEffect({"model.rope_scaling_factor"},
                   absl::StrCat("with ", Named("model.use_rope_scaling")));
    }
    if (!Usable({"model.kv_channels", "model.rotary_percent"})) return;
    const int64_t rotated =
        static_cast<int64_t>(static_cast<double>(model.kv_channels()) * model.rotary_percent());
    if (rotated < 2 || rotated % 2 != 0) {
      Error("model.rotary_percent",
            absl::StrCat("of ", Named("model.kv_channels"), " rotates ", rotated,
                         " channels; an even number of at least 2 is needed"));
    }
  }

  void CheckNetworkChoices() {
    if (resolved_.model().swiglu())
      HaveNoEffect({"model.activation_func"}, absl::StrCat("with ", Named("model.swiglu")));
    if (!resolved_.model().disable_bias_linear()) {
      HaveNoEffect({"model.add_qkv_bias"},
                   absl::StrCat("with ", Named("model.disable_bias_linear")));
    }
  }

  void CheckLayout() {
    const config::ModelConfig& model = resolved_.model();
    constexpr char kTensor[] = "parallel.tensor_model_parallel_size";
    const int64_t tensor = resolved_.parallel().tensor_model_parallel_size();
    MustDivide(kTensor, "model.num_attention_heads", tensor, model.num_attention_heads());
    MustDivide(kTensor, "model.ffn_hidden_size", tensor, model.ffn_hidden_size());
    MustDivide(kTensor, "model.make_vocab_size_divisible_by", tensor,
               model.make_vocab_size_divisible_by());
    if (model.group_query_attention() && Usable({kTensor, "model.num_query_groups"}) &&
        model.num_query_groups() % tensor != 0 && tensor % model.num_query_groups() != 0) {
      Error("model.num_query_groups",
            absl::StrCat("must divide, or be divisible by, ", Named(kTensor)));
    }
    MustDivide("parallel.pipeline_model_parallel_size", "model.num_layers",
               resolved_.parallel().pipeline_model_parallel_size(), model.num_layers());
  }

  void CheckPrecision() {
    const config::PrecisionConfig& precision = resolved_.precision();
    if (precision.fp16() && precision.bf16()) {
      Error("precision.fp16",
            absl::StrCat("contradicts ", Named("precision.bf16"), "; choose one"));
    }
    const std::initializer_list<absl::string_view> dynamic = {
        "precision.initial_loss_scale", "precision.min_loss_scale", "precision.loss_scale_window",
        "precision.hysteresis"};
    if (!precision.fp16()) {
      HaveNoEffect({"precision.loss_scale"}, "without precision.fp16: true");
      HaveNoEffect(dynamic, "without precision.fp16: true");
    } else if (IsWritten("precision.loss_scale")) {
      HaveNoEffect(dynamic, absl::StrCat("with the fixed ", Named("precision.loss_scale")));
    } else if (Usable({"precision.min_loss_scale", "precision.initial_loss_scale"}) &&
               precision.min_loss_scale() > precision.initial_loss_scale()) {
      Error("precision.min_loss_scale",
            absl::StrCat("must be at most ", Named("precision.initial_loss_scale")));
    }
  }

  void CheckRecompute() {
    const config::RecomputeConfig& recompute = resolved_.recompute();
    const std::string granularity = absl::StrCat("with ", Named("recompute.recompute_granularity"));
    if (recompute.recompute_granularity() != config::RecomputeGranularity::full) {
      HaveNoEffect({"recompute.recompute_method", "recompute.recompute_num_layers"}, granularity);
    } else if (Usable({"recompute.recompute_num_layers", "model.num_layers"}) &&
               recompute.recompute_num_layers() > resolved_.model().num_layers()) {
      Error("recompute.recompute_num_layers",
            absl::StrCat("must be at most ", Named("model.num_layers")));
    }
    if (recompute.recompute_granularity() != config::RecomputeGranularity::selective) {
      HaveNoEffect({"recompute.recompute_modules"}, granularity);
    }
    const std::set<int> distinct(recompute.recompute_modules().begin(),
                                 recompute.recompute_modules().end());
    if (static_cast<int>(distinct.size()) != recompute.recompute_modules_size()) {
      Error("recompute.recompute_modules", "names a module twice");
    }
  }

  void MustNotExceed(absl::string_view path, absl::string_view limit, double value,
                     double limit_value) {
    if (Usable({path, limit}) && value > limit_value)
      Error(path, absl::StrCat("must be at most ", Named(limit)));
  }

  void CheckLearningRate() {
    const config::OptimizerConfig& optimizer = resolved_.optimizer();
    MustNotExceed("optimizer.min_lr", "optimizer.lr", optimizer.min_lr(), optimizer.lr());
    MustNotExceed("optimizer.lr_warmup_init", "optimizer.lr", optimizer.lr_warmup_init(),
                  optimizer.lr());
    if (IsWritten("optimizer.lr_warmup_fraction") && optimizer.lr_warmup_iters() > 0) {
      Error("optimizer.lr_warmup_fraction",
            absl::StrCat("contradicts ", Named("optimizer.lr_warmup_iters"), "; choose one"));
    }
    if (Usable({"optimizer.lr_warmup_iters", "optimizer.lr_decay_iters"}) &&
        optimizer.lr_warmup_iters() >= optimizer.lr_decay_iters()) {
      Error("optimizer.lr_warmup_iters",
            absl::StrCat("must be less than ", Named("optimizer.lr_decay_iters")));
    }
    if (optimizer.lr_decay_style() != config::LrDecayStyle::WSD) {
      HaveNoEffect({"optimizer.lr_wsd_decay_style", "optimizer.lr_wsd_decay_iters"},
                   absl::StrCat("with ", Named("optimizer.lr_decay_style")));
    } else if (!IsWritten("optimizer.lr_wsd_decay_iters")) {
      Error("optimizer.lr_wsd_decay_iters",
            absl::StrCat("is required by ", Named("optimizer.lr_decay_style")));
    } else {
      MustNotExceed("optimizer.lr_wsd_decay_iters", "optimizer.lr_decay_iters",
                    optimizer.lr_wsd_decay_iters(), optimizer.lr_decay_iters());
    }
  }

  void CheckOptimizer() {
    const config::OptimizerConfig& optimizer = resolved_.optimizer();
    const std::string style = Named("optimizer.weight_decay_incr_style");
    const bool constant =
        optimizer.weight_decay_incr_style() == config::WeightDecayIncrStyle::constant;
    for (absl::string_view path : {"optimizer.start_weight_decay", "optimizer.end_weight_decay"}) {
      if (!constant && !IsWritten(path))
        Error("optimizer.weight_decay_incr_style", absl::StrCat("needs ", path));
      if (constant && Usable({path, "optimizer.weight_decay"}) &&
          ValueText(Ref(path)) != ValueText(Ref("optimizer.weight_decay"))) {
        Error(path, absl::StrCat("differs from ", Named("optimizer.weight_decay"), ", which ",
                                 style, " holds on to"));
      }
    }
    if (!constant) HaveNoEffect({"optimizer.weight_decay"}, absl::StrCat("with ", style));
    const std::string kind = absl::StrCat("with ", Named("optimizer.optimizer"));
    if (optimizer.optimizer() == config::Optimizer::adam) {
      HaveNoEffect({"optimizer.sgd_momentum"}, kind);
    } else {
      HaveNoEffect({"optimizer.adam_beta1", "optimizer.adam_beta2", "optimizer.adam_eps"}, kind);
    }
  }

  // Samples that all data-parallel ranks together take in one micro-step.
  int64_t SamplesPerMicroStep() const {
    return resolved_.training().micro_batch_size() * resolved_.parallel().data_parallel_size();
  }

  void MustBeWholeMicroSteps(absl::string_view path, int64_t samples) {
    if (!Usable({path, "training.micro_batch_size", "parallel.data_parallel_size"})) return;
    if (samples % SamplesPerMicroStep() == 0) return;
    Error(path, absl::StrCat("must be divisible by ", Named("training.micro_batch_size"), " times ",
                             Named("parallel.data_parallel_size")));
  }

  void CheckBatch() {
    MustBeWholeMicroSteps("training.global_batch_size", resolved_.training().global_batch_size());
    if (!Usable({"training.train_iters", "training.global_batch_size", "model.seq_length"})) return;
    const double tokens = static_cast<double>(resolved_.training().train_iters()) *
                          static_cast<double>(resolved_.training().global_batch_size()) *
                          static_cast<double>(resolved_.model().seq_length());
    if (tokens > kMostTokens) {
      Error("training.train_iters",
            absl::StrCat("times ", Named("training.global_batch_size"), " times ",
                         Named("model.seq_length"), " is more tokens than 64 bits can count"));
    }
  }

  void CheckRampup() {
    if (!raw_.training().has_rampup_batch_size()) return;
    constexpr char kStart[] = "training.rampup_batch_size.start";
    constexpr char kIncrement[] = "training.rampup_batch_size.increment";
    constexpr char kGlobal[] = "training.global_batch_size";
    for (absl::string_view path : {kStart, kIncrement, "training.rampup_batch_size.samples"}) {
      if (!IsWritten(path) && !locations_.IsBroken(path))
        Error(path, "is required by training.rampup_batch_size");
    }
    const config::RampupBatchSize& rampup = resolved_.training().rampup_batch_size();
    MustBeWholeMicroSteps(kStart, rampup.start());
    MustBeWholeMicroSteps(kIncrement, rampup.increment());
    if (!Usable({kStart, kGlobal})) return;
    const int64_t growth = resolved_.training().global_batch_size() - rampup.start();
    if (growth <= 0) {
      Error(kStart, absl::StrCat("must be less than ", Named(kGlobal)));
    } else if (Usable({kIncrement}) && growth % rampup.increment() != 0) {
      Error(kIncrement, absl::StrCat("must divide ", Named(kGlobal), " less ", Named(kStart),
                                     ", which is ", growth));
    }
  }

  void CheckData() {
    const config::DataConfig& data = resolved_.data();
    std::vector<std::string> sources;
    if (data.data_path_size() > 0) sources.push_back(Named("data.data_path"));
    if (data.mock_data()) sources.push_back(Named("data.mock_data"));
    if (data.has_stories())
      sources.push_back(absl::StrCat("data.stories (", locations_.Where("data.stories"), ")"));
    if (sources.empty() && !locations_.IsBroken("data.data_path")) {
      Error("data.data_path",
            "there is no data: set data.data_path, data.stories or data.mock_data");
    }
    for (size_t i = 1; i < sources.size(); ++i) {
      errors_.push_back({locations_.Where("data"), "data", "",
                         absl::StrCat(sources[i], " contradicts ", sources[0], "; choose one")});
    }
    if (std::find(data.data_path().begin(), data.data_path().end(), "") != data.data_path().end()) {
      Error("data.data_path", "holds an empty prefix");
    }
    CheckSplit(data.split());
    const std::string tokenizer = Named("data.tokenizer_type");
    if (data.tokenizer_type() != config::Tokenizer::NullTokenizer) {
      HaveNoEffect({"data.vocab_size"}, absl::StrCat("with ", tokenizer));
    } else if (data.has_stories()) {
      Error("data.tokenizer_type", "cannot read data.stories, which is text");
    } else if (!IsWritten("data.vocab_size") && !locations_.IsBroken("data.vocab_size")) {
      Error("data.vocab_size", absl::StrCat("is required by ", tokenizer));
    }
  }

  void CheckSplit(const std::string& split) {
    double sum = 0;
    int count = 0;
    for (absl::string_view part : absl::StrSplit(split, ',')) {
      double share;
      if (++count > kMostSplits || !absl::SimpleAtod(part, &share) ||
          !(share >= 0 && share <= 1e9)) {
        return Error("data.split",
                     "expects up to three shares that are not negative, as in \"969,30,1\"");
      }
      sum += share;
    }
    if (sum <= 0) Error("data.split", "gives nothing to any part");
  }

  void CheckCheckpoint() {
    if (!IsWritten("checkpoint.save")) {
      HaveNoEffect({"checkpoint.save_interval", "checkpoint.keep_last", "checkpoint.async_save"},
                   "without checkpoint.save");
    } else if (resolved_.checkpoint().save().empty()) {
      Error("checkpoint.save", "expects the name of a directory");
    }
    if (!resolved_.checkpoint().has_load()) {
      HaveNoEffect({"checkpoint.finetune", "checkpoint.no_load_optim"}, "without checkpoint.load");
    } else if (resolved_.checkpoint().load().empty()) {
      Error("checkpoint.load", "expects the name of a directory");
    } else if (resolved_.checkpoint().finetune() &&
               resolved_.checkpoint().load() == resolved_.checkpoint().save()) {
      Error("checkpoint.finetune",
            absl::StrCat("would start anew from its own checkpoints each time: ",
                         Named("checkpoint.load"), " is where it saves; load another"));
    }
    if (resolved_.checkpoint().finetune()) {
      HaveNoEffect({"checkpoint.no_load_optim"},
                   absl::StrCat("with ", Named("checkpoint.finetune")));
    }
  }

  void CheckGeneration() {
    if (resolved_.has_generation() &&
        resolved_.data().tokenizer_type() == config::Tokenizer::NullTokenizer) {
      errors_.push_back(
          {locations_.Where("generation"), "generation", "",
           absl::StrCat("prints text, which ", Named("data.tokenizer_type"), " cannot write")});
    }
  }

  void CheckThatItCanRun() {
    for (absl::string_view path :
         {"parallel.tensor_model_parallel_size", "parallel.pipeline_model_parallel_size",
          "parallel.data_parallel_size"}) {
      if (Usable({path}) && !IsDefault(path)) {
        Error(path, absl::StrCat("this version trains on one rank: give --set ", path,
                                 "=1, or --dry_run to plan the layout"));
      }
    }
    if (resolved_.system().device() == config::Device::cuda) {
      Error("system.device",
            "this version trains on the CPU: give --set system.device=cpu, or --dry_run to plan "
            "the run");
    }
  }

  const config::PretrainConfig& raw_;
  config::PretrainConfig resolved_;
  const ConfigLocations& locations_;
  std::vector<ConfigError> errors_;
  absl::flat_hash_set<std::string> out_of_range_;
};

}  // namespace

std::vector<ConfigError> Validate(const config::PretrainConfig& config,
                                  const ConfigLocations& locations, ConfigPurpose purpose) {
  return Validator(config, locations).Run(purpose);
}

}  // namespace megatron
