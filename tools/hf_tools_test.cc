// Runs import_hf and export_hf as a user does.

#include <sys/wait.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/base/thread_pool.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/checkpoint/safetensors_reader.h"
#include "megatron/checkpoint/safetensors_writer.h"
#include "megatron/data/tokenizer/training/bpe_trainer.h"
#include "megatron/data/tokenizer/training/trained_bpe_files.h"
#include "megatron/models/huggingface/hf_adapter.h"
#include "megatron/models/huggingface/hf_config.h"
#include "megatron/models/huggingface/hf_family_models.h"
#include "megatron/models/huggingface/hf_weights.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelOptions Gpt2() {
  ModelOptions options;
  TransformerOptions& layer = options.transformer;
  layer.num_layers = 2;
  layer.hidden_size = 32;
  layer.ffn_hidden_size = 80;
  layer.num_attention_heads = layer.num_query_groups = 4;
  layer.kv_channels = 8;
  options.vocab_size = options.padded_vocab_size = 50;
  options.max_positions = 16;
  return options;
}

ModelOptions Llama(DType dtype) {
  ModelOptions options = Gpt2();
  TransformerOptions& layer = options.transformer;
  layer.num_query_groups = 2;
  layer.kv_channels = 12;
  layer.norm.kind = ops::Norm::kRmsNorm;
  layer.gated = layer.rotary = true;
  layer.linear_bias = layer.qkv_bias = false;
  layer.rotary_options.scaling_factor = 8;
  layer.dtype = dtype;
  layer.hidden_dropout = 0;
  options.learned_positions = options.tied_embeddings = false;
  return options;
}

ModelOptions Bert() {
  ModelOptions options = Gpt2();
  options.transformer.name = "encoder";
  options.transformer.causal = false;
  options.transformer.post_norm = true;
  options.transformer.activation = ops::Activation::kGeluErf;
  options.num_token_types = 2;
  options.kind = ModelKind::kBert;
  options.sentence_order_head = true;
  return options;
}

// A T5 1.1, or a T5 without a gate, whose activation function no published T5 has.
ModelOptions T5(bool gated) {
  ModelOptions options = Gpt2();
  options.kind = ModelKind::kT5;
  options.num_encoder_layers = 1;
  TransformerOptions& layer = options.transformer;
  layer.norm.kind = ops::Norm::kRmsNorm;
  layer.linear_bias = layer.qkv_bias = false;
  layer.relative_positions = {32, 128};
  layer.softmax_scale = 1;
  layer.gated = gated;
  layer.gate = ops::Activation::kGeluTanh;
  layer.activation = ops::Activation::kSilu;
  options.learned_positions = options.tied_embeddings = false;
  return options;
}

class HfToolsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = JoinPath(::testing::TempDir(), "hf_tools_test");
    ASSERT_THAT(fs_.RemoveTree(directory_), IsOk());
    ASSERT_THAT(fs_.CreateDirs(directory_), IsOk());
  }

  std::string Path(const std::string& name) const { return JoinPath(directory_, name); }

  // Returns the exit code; output_ holds the program's output.
  int Run(const std::string& tool, const std::string& arguments) {
    return RunBehind("", tool, arguments);
  }

  // The shell runs `before` first.
  int RunBehind(const std::string& before, const std::string& tool, const std::string& arguments) {
    const std::string command =
        absl::StrCat(before, "tools/", tool, " ", arguments, " > '", Path("log"), "' 2>&1");
    const int status = std::system(command.c_str());
    output_ = ReadFileToString(fs_, Path("log")).value_or("");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  static std::vector<SafetensorsTensor> FilesOf(const ModelOptions& options,
                                                const std::string& model_type = "") {
    std::vector<SafetensorsTensor> files;
    for (const HfTensor& tensor : HfTensors(options, model_type)) {
      files.push_back({tensor.name, SafetensorsName(options.transformer.dtype), tensor.shape});
    }
    return files;
  }

  // A Hugging Face model of random bytes, NaNs among them.
  void WriteModel(const std::string& name, const ModelOptions& options,
                  const std::vector<SafetensorsTensor>& files, int64_t max_file_bytes = 1 << 30) {
    ASSERT_THAT(fs_.RemoveTree(Path(name)), IsOk());
    ASSERT_THAT(fs_.CreateDirs(Path(name)), IsOk());
    ASSERT_THAT(WriteFileAtomically(fs_, Path(name + "/config.json"), *HfConfigJson(options, {})),
                IsOk());
    SafetensorsModelOptions model_options;
    model_options.max_file_bytes = max_file_bytes;
    ASSERT_THAT(WriteSafetensorsModel(fs_, Path(name), files, model_options,
                                      [&](const SafetensorsTensor& tensor, std::string* bytes) {
                                        bytes->resize(static_cast<size_t>(tensor.bytes()));
                                        for (char& c : *bytes) c = static_cast<char>(random_());
                                        return absl::OkStatus();
                                      }),
                IsOk());
  }
  void WriteModel(const std::string& name, const ModelOptions& options) {
    WriteModel(name, options, FilesOf(options));
  }

  // Tensors of numbers from -1 to 1, in fp32, by name.
  using Values = std::map<std::string, std::vector<float>>;
  absl::Status FillWithNumbers(const SafetensorsTensor& tensor, std::string* bytes,
                               Values* values) {
    std::vector<float>& numbers = (*values)[tensor.name];
    std::uniform_real_distribution<float> uniform(-1, 1);
    numbers.resize(static_cast<size_t>(tensor.bytes()) / sizeof(float));
    for (float& number : numbers) number = uniform(random_);
    bytes->assign(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
    return absl::OkStatus();
  }

  // The model in fp32, and PEFT's adapters of it in "adapter", of which q, k and v have their own
  // A.
  Values WriteAdaptedModel(const ModelOptions& options, const std::string& model_type = "") {
    Values values;
    for (const char* name : {"model", "adapter"}) {
      EXPECT_THAT(fs_.RemoveTree(Path(name)), IsOk());
      EXPECT_THAT(fs_.CreateDirs(Path(name)), IsOk());
    }
    const auto fill = [&](const SafetensorsTensor& tensor, std::string* bytes) {
      return FillWithNumbers(tensor, bytes, &values);
    };
    EXPECT_THAT(
        WriteFileAtomically(fs_, Path("model/config.json"), *HfConfigJson(options, {}, model_type)),
        IsOk());
    EXPECT_THAT(WriteSafetensorsModel(fs_, Path("model"), FilesOf(options, model_type), {}, fill),
                IsOk());
    EXPECT_THAT(WriteFileAtomically(fs_, Path("adapter/adapter_config.json"),
                                    HfAdapterConfigJson(options, model_type)),
                IsOk());
    SafetensorsHeader header;
    header.metadata = {{"format", "pt"}};
    for (const HfAdapter& adapter : HfAdapters(options, model_type)) {
      for (const HfTensor* tensor : {&adapter.a, &adapter.b})
        header.tensors.push_back({tensor->name, "F32", tensor->shape});
    }
    EXPECT_THAT(WriteSafetensorsFile(fs_, Path("adapter/adapter_model.safetensors"),
                                     std::move(header), fill),
                IsOk());
    return values;
  }

  // Expects that the weights are those of the model with the adapters' products added.
  void ExpectMerged(const ModelOptions& options, const Values& values, const std::string& name,
                    const std::string& model_type = "") {
    const auto file = SafetensorsFile::Open(Path(name + "/model.safetensors"));
    ASSERT_THAT(file, IsOk());
    std::map<std::string, const HfAdapter*> adapters;
    const std::vector<HfAdapter> all = HfAdapters(options, model_type);
    for (const HfAdapter& adapter : all) adapters[adapter.a.name] = &adapter;
    const double scale = options.transformer.lora.alpha / options.transformer.lora.dim;
    int adapted = 0;
    for (const HfTensor& tensor : HfTensors(options, model_type)) {
      const std::string layer =
          "base_model.model." + tensor.name.substr(0, tensor.name.rfind('.')) + ".lora_A.weight";
      const auto adapter = adapters.find(layer);
      std::vector<double> want(values.at(tensor.name).begin(), values.at(tensor.name).end());
      if (adapter != adapters.end() && tensor.shape.size() == 2) {
        ++adapted;
        const std::vector<float>&a = values.at(layer), &b = values.at(adapter->second->b.name);
        const int64_t dim = options.transformer.lora.dim;
        for (int64_t o = 0; o < tensor.rows; ++o) {
          for (int64_t i = 0; i < tensor.columns; ++i) {
            double& sum = want[tensor.transposed ? i * tensor.rows + o : o * tensor.columns + i];
            for (int64_t r = 0; r < dim; ++r)
              sum += scale * b[o * dim + r] * a[r * tensor.columns + i];
          }
        }
      }
      for (const SafetensorsTensor& got : file->header().tensors) {
        if (got.name != tensor.name) continue;
        const absl::string_view bytes = file->Bytes(got);
        for (size_t i = 0; i < want.size(); ++i) {
          float number;
          std::memcpy(&number, bytes.data() + i * sizeof(number), sizeof(number));
          ASSERT_NEAR(number, want[i], 1e-5) << tensor.name << " " << i;
        }
      }
    }
    EXPECT_EQ(adapted, static_cast<int>(all.size()));
  }

  // One token for every byte, and one special token.
  static TrainedBpe Bytes() {
    BpeTrainerOptions training;
    training.vocab_size = 257;
    training.special_tokens = {"<|endoftext|>"};
    ThreadPool pool(1);
    return *TrainBpe(WordCounts(), training, &pool, [](int32_t) {});
  }

  static ModelOptions RowsForTokens() {
    ModelOptions options = Gpt2();
    options.vocab_size = options.padded_vocab_size = 400;
    return options;
  }

  void WriteTokenizer(const std::string& name) {
    const TrainedBpe bpe = Bytes();
    ASSERT_THAT(WriteFileAtomically(fs_, Path(name + "/vocab.json"), VocabJson(bpe)), IsOk());
    ASSERT_THAT(WriteFileAtomically(fs_, Path(name + "/merges.txt"), MergesText(bpe)), IsOk());
  }

  std::string Contents(const std::string& path) {
    const auto contents = ReadFileToString(fs_, Path(path));
    EXPECT_THAT(contents, IsOk());
    return contents.value_or("");
  }

  FileSystem& fs_ = PosixFileSystem();
  std::mt19937 random_{1};
  std::string directory_, output_;
};

TEST_F(HfToolsTest, ExportingWhatWasImportedGivesTheSameBytes) {
  std::vector<ModelOptions> models = {Gpt2(),
                                      Llama(DType::kFloat32),
                                      Llama(DType::kBFloat16),
                                      Llama(DType::kFloat16),
                                      Bert(),
                                      T5(true),
                                      T5(false),
                                      Bert()};
  models[7].transformer.activation = models[7].masked_lm_activation = ops::Activation::kGeluTanh;
  models[2].transformer.qkv_bias = models[2].tied_embeddings = true;
  models[2].transformer.kv_channels = 8;
  models[3].transformer.qkv_bias = models[3].transformer.linear_bias = true;
  models[3].transformer.num_query_groups = 1;
  for (const HfFamilyModel& family : HfFamilyModels()) models.push_back(family.options);
  for (size_t i = 0; i < models.size(); ++i) {
    WriteModel("model", models[i]);
    const std::string number = absl::StrCat(i);
    // Our checkpoint may choose which pairs of channels are rotated.
    const std::string flags = i == 1 ? "--rotary_interleaved " : "";
    EXPECT_EQ(
        Run("import_hf", absl::StrCat(flags, "--save=", Path("save" + number), " ", Path("model"))),
        0)
        << output_;
    EXPECT_EQ(Run("export_hf",
                  absl::StrCat("--output=", Path("out" + number), " ", Path("save" + number))),
              0)
        << output_;
    EXPECT_THAT(*fs_.List(Path("out" + number)),
                ElementsAre("config.json", "generation_config.json", "model.safetensors"));
    EXPECT_TRUE(Contents("out" + number + "/model.safetensors") ==
                Contents("model/model.safetensors"));
    EXPECT_EQ(*HfConfigJson(*ParseHfConfig(Contents("out" + number + "/config.json")), {}),
              *HfConfigJson(*ParseHfConfig(Contents("model/config.json")), {}));

    // Exports once more from there.
    EXPECT_EQ(Run("import_hf", absl::StrCat(flags, "--save=", Path("again" + number), " ",
                                            Path("out" + number))),
              0);
    const std::string shard = "/iter_0000000/shard_00000_of_00001.bin";
    EXPECT_TRUE(Contents("again" + number + shard) == Contents("save" + number + shard));
  }
}

TEST_F(HfToolsTest, AdaptersComeAndGoWithTheModel) {
  for (const bool gpt2 : {true, false}) {
    SCOPED_TRACE(gpt2 ? "gpt2" : "llama");
    ModelOptions options = gpt2 ? Gpt2() : Llama(DType::kFloat32);
    options.transformer.lora = {
        /*dim=*/4, /*alpha=*/8, {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"}};
    const Values values = WriteAdaptedModel(options);
    const std::string save = Path(gpt2 ? "save_gpt2" : "save_llama");
    ASSERT_EQ(Run("import_hf", absl::StrCat("--adapter=", Path("adapter"), " --save=", save, " ",
                                            Path("model"))),
              0)
        << output_;
    const std::string merged = gpt2 ? "merged_gpt2" : "merged_llama";
    ASSERT_EQ(Run("export_hf", absl::StrCat("--output=", Path(merged), " ", save)), 0) << output_;
    ExpectMerged(options, values, merged);
    const std::string alone = gpt2 ? "alone_gpt2" : "alone_llama";
    ASSERT_EQ(Run("export_hf", absl::StrCat("--adapter --output=", Path(alone), " ", save)), 0)
        << output_;
    EXPECT_THAT(*fs_.List(Path(alone)),
                ElementsAre("adapter_config.json", "adapter_model.safetensors"));
    const std::string config = Contents(alone + "/adapter_config.json");
    if (gpt2) {
      EXPECT_EQ(config, Contents("adapter/adapter_config.json"));
      EXPECT_TRUE(Contents(alone + "/adapter_model.safetensors") ==
                  Contents("adapter/adapter_model.safetensors"));
    } else {
      // q, k and v have one A here, with the rows of all three, and so has every layer.
      EXPECT_THAT(config, AllOf(HasSubstr("\"r\": 12"), HasSubstr("\"lora_alpha\": 24.0")));
    }
    // What was exported is the same function, and is imported without growing.
    const std::string again = Path(gpt2 ? "again_gpt2" : "again_llama");
    ASSERT_EQ(Run("import_hf",
                  absl::StrCat("--adapter=", Path(alone), " --save=", again, " ", Path("model"))),
              0)
        << output_;
    const std::string shard = "/iter_0000000/shard_00000_of_00001.bin";
    EXPECT_TRUE(*ReadFileToString(fs_, again + shard) == *ReadFileToString(fs_, save + shard));
  }
}

// Each of these models is a model of several families, too, whose layers have other names or rows
// in another order.
TEST_F(HfToolsTest, AdaptersAreThoseOfTheFamilyThatTheModelIsOf) {
  ModelOptions ernie = Llama(DType::kFloat32), phi3 = Llama(DType::kFloat32);
  ernie.transformer.rotary_options.interleaved = true;
  phi3.transformer.rotary_options.scaling_factor = 0;
  phi3.transformer.kv_channels = 8;
  const std::pair<std::string, ModelOptions> models[] = {
      {"ernie4_5", ernie}, {"gpt_bigcode", Gpt2()}, {"phi3", phi3}};
  for (auto [type, options] : models) {
    SCOPED_TRACE(type);
    options.transformer.lora = {/*dim=*/4, /*alpha=*/8, {"linear_qkv", "linear_fc1"}};
    const Values values = WriteAdaptedModel(options, type);
    const std::string save = Path("save_" + type), again = Path("again_" + type);
    ASSERT_EQ(Run("import_hf", absl::StrCat("--adapter=", Path("adapter"), " --save=", save, " ",
                                            Path("model"))),
              0)
        << output_;
    const std::string as_type = absl::StrCat("--model_type=", type, " --output=");
    const std::string merged = "merged_" + type, alone = "alone_" + type;
    ASSERT_EQ(Run("export_hf", absl::StrCat(as_type, Path(merged), " ", save)), 0) << output_;
    ExpectMerged(options, values, merged, type);
    ASSERT_EQ(Run("export_hf", absl::StrCat("--adapter ", as_type, Path(alone), " ", save)), 0)
        << output_;
    ASSERT_EQ(Run("import_hf",
                  absl::StrCat("--adapter=", Path(alone), " --save=", again, " ", Path("model"))),
              0)
        << output_;
    const std::string shard = "/iter_0000000/shard_00000_of_00001.bin";
    EXPECT_TRUE(*ReadFileToString(fs_, again + shard) == *ReadFileToString(fs_, save + shard));
  }
}

TEST_F(HfToolsTest, RefusesAdaptersOfAnotherModel) {
  ModelOptions options = Gpt2();
  options.transformer.lora = {/*dim=*/4, /*alpha=*/8, {"linear_fc1"}};
  WriteAdaptedModel(options);
  const auto import = [&](const std::string& model) {
    return Run("import_hf", absl::StrCat("--adapter=", Path("adapter"), " --save=", Path("save"),
                                         " ", Path(model)));
  };
  ModelOptions wider = Gpt2();
  wider.transformer.ffn_hidden_size = 96;
  WriteModel("wider", wider);
  EXPECT_NE(import("wider"), 0);
  EXPECT_THAT(output_, HasSubstr("c_fc.lora_B.weight' is [80, 4] and not [96, 4]"));
  WriteModel("llama", Llama(DType::kFloat32));
  EXPECT_NE(import("llama"), 0);
  EXPECT_THAT(output_, HasSubstr("has no place in this model"));
  ModelOptions deeper = Gpt2();
  deeper.transformer.num_layers += 2;
  WriteModel("deeper", deeper);
  EXPECT_NE(import("deeper"), 0);
  EXPECT_THAT(output_,
              AllOf(HasSubstr("adapter_model.safetensors: 'base_model.model.transformer.h."),
                    HasSubstr("mlp.c_fc.lora_A.weight' is missing, which other layers")));
  const auto write_config = [&](const std::string& more) {
    return WriteFileAtomically(
        fs_, Path("adapter/adapter_config.json"),
        absl::StrCat(R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8, )", more, "}"));
  };
  ASSERT_THAT(write_config(R"("layers_to_transform": [0, 1])"), IsOk());
  EXPECT_EQ(import("deeper"), 0) << output_;
  ASSERT_THAT(fs_.RemoveTree(Path("save")), IsOk());
  ASSERT_THAT(write_config(R"("use_dora": true)"), IsOk());
  EXPECT_NE(import("model"), 0);
  EXPECT_THAT(output_, AllOf(HasSubstr("adapter_config.json"), HasSubstr("use_dora")));
  // A model without adapters has none to export.
  ASSERT_EQ(Run("import_hf", absl::StrCat("--save=", Path("plain"), " ", Path("model"))), 0);
  EXPECT_NE(Run("export_hf", absl::StrCat("--adapter --output=", Path("none"), " ", Path("plain"))),
            0);
  EXPECT_THAT(output_, HasSubstr("has no adapters"));
}

TEST_F(HfToolsTest, ModelsInSeveralFilesAreTheSame) {
  const ModelOptions options = Gpt2();
  WriteModel("model", options, FilesOf(options), /*max_file_bytes=*/20000);
  ASSERT_EQ(Run("import_hf", absl::StrCat("--save=", Path("save"), " ", Path("model"))), 0);
  ASSERT_EQ(Run("export_hf",
                absl::StrCat("--max_file_bytes=20000 --output=", Path("out"), "/ ", Path("save"))),
            0)
      << output_;
  const std::vector<std::string> names = *fs_.List(Path("model"));
  EXPECT_GT(names.size(), 3u);
  for (const std::string& name : names) {
    if (name == "config.json") continue;
    EXPECT_TRUE(Contents("out/" + name) == Contents("model/" + name)) << name;
  }
}

TEST_F(HfToolsTest, PaddingRowsAreZeroAndAreNotExported) {
  WriteModel("model", Llama(DType::kBFloat16));
  ASSERT_EQ(Run("import_hf", absl::StrCat("--save=", Path("save"), " ", Path("model"))), 0);
  const auto found = FindLatestCheckpoint(fs_, Path("save"));
  ASSERT_THAT(found, IsOk());
  const auto reader = CheckpointReader::Open(fs_, found->directory);
  ASSERT_THAT(reader, IsOk());
  EXPECT_TRUE(reader->Verify().empty());
  for (const char* name : {"embedding.word_embeddings.weight", "output_layer.weight"}) {
    EXPECT_EQ(FindTensor(reader->manifest(), name)->shape, (Shape{128, 32}));
    std::vector<uint16_t> rows(78 * 32, 1);
    ASSERT_THAT(reader->Read(name, {50, 0}, Tensor(rows.data(), DType::kBFloat16, {78, 32})),
                IsOk());
    EXPECT_EQ(rows, std::vector<uint16_t>(78 * 32, 0));
  }
  // Training starts from masters, which are the weights exactly.
  const std::string norm = "decoder.final_layernorm.weight";
  std::vector<BFloat16> weight(32);
  std::vector<float> master(32);
  ASSERT_THAT(reader->Read(norm, {0}, Tensor(weight.data(), DType::kBFloat16, {32})), IsOk());
  ASSERT_THAT(reader->Read("optimizer.state.fp32_param." + norm, {0},
                           Tensor(master.data(), DType::kFloat32, {32})),
              IsOk());
  for (size_t i = 0; i < 32; ++i) {
    const float value = ToFloat(weight[i]);
    EXPECT_EQ(std::memcmp(&value, &master[i], sizeof(value)), 0);
  }
}

TEST_F(HfToolsTest, TheTokenizerGoesWithTheModel) {
  ModelOptions options = RowsForTokens();  // more rows than tokens
  const TrainedBpe bpe = Bytes();
  WriteModel("model", options);
  WriteTokenizer("model");
  const std::string import = absl::StrCat("--save=", Path("save"), " ", Path("model"));
  EXPECT_EQ(Run("import_hf", import), 0) << output_;
  EXPECT_THAT(Contents("save/config.textproto"),
              AllOf(HasSubstr("tokenizer_type: GPT2BPETokenizer"),
                    HasSubstr("/save/tokenizer/merges.txt\""),
                    HasSubstr("make_vocab_size_divisible_by: 512")));
  // The original may go.
  ASSERT_THAT(fs_.Rename(Path("model"), Path("gone")), IsOk());
  EXPECT_EQ(Run("export_hf", absl::StrCat("--output=", Path("out"), " ", Path("save"))), 0)
      << output_;
  EXPECT_EQ(Contents("out/vocab.json"), VocabJson(bpe));
  EXPECT_EQ(Contents("out/merges.txt"), MergesText(bpe));
  EXPECT_THAT(Contents("out/config.json"),
              AllOf(HasSubstr("\"vocab_size\": 257"), HasSubstr("\"eos_token_id\": 0")));
  EXPECT_EQ(Run("export_hf",
                absl::StrCat("--vocab_size=400 --output=", Path("whole"), " ", Path("save"))),
            0);
  EXPECT_TRUE(Contents("whole/model.safetensors") == Contents("gone/model.safetensors"));
  EXPECT_EQ(
      Run("export_hf", absl::StrCat("--vocab_size=256 --output=", Path("less"), " ", Path("save"))),
      20);
  EXPECT_THAT(output_, HasSubstr("the tokenizer has 257 tokens"));
  // So may the directory of the checkpoint, with the tokenizer in it.
  ASSERT_THAT(fs_.Rename(Path("save"), Path("moved")), IsOk());
  EXPECT_EQ(Run("export_hf", absl::StrCat("--output=", Path("out2"), " ", Path("moved"))), 0)
      << output_;
  EXPECT_EQ(Contents("out2/vocab.json"), VocabJson(bpe));
  // The batch and the decay of weights are placeholders. Nothing that follows from them is fixed.
  EXPECT_EQ(Run("../megatron/train/pretrain_gpt",
                absl::StrCat("--set train.train_iters=1 --set train.micro_batch_size=2 "
                             "--set optimizer.weight_decay=0.1 --config=",
                             Path("moved/config.textproto"))),
            0)
      << output_;
  EXPECT_THAT(output_, HasSubstr(absl::StrCat("starting from the weights of ", Path("moved"))));

  options.vocab_size = options.padded_vocab_size = 256;
  WriteModel("model", options);
  WriteTokenizer("model");
  EXPECT_EQ(Run("import_hf", absl::StrCat("--save=", Path("none"), " ", Path("model"))), 20);
  EXPECT_THAT(output_, AllOf(HasSubstr("257 tokens"), HasSubstr("--no_tokenizer")));
  EXPECT_EQ(
      Run("import_hf", absl::StrCat("--no_tokenizer --save=", Path("none"), " ", Path("model"))), 0)
      << output_;
  EXPECT_THAT(Contents("none/config.textproto"), HasSubstr("tokenizer_type: NullTokenizer"));
}

TEST_F(HfToolsTest, ChatTemplatesAndTheGenerationConfigComeBack) {
  WriteModel("model", RowsForTokens());
  WriteTokenizer("model");
  const std::vector<std::string> names = {"chat_template.jinja", "generation_config.json",
                                          "tokenizer_config.json", "special_tokens_map.json"};
  for (const std::string& name : names)
    ASSERT_THAT(WriteFileAtomically(fs_, Path("model/" + name), "{\"this\": \"" + name + "\"}"),
                IsOk());
  ASSERT_EQ(Run("import_hf", absl::StrCat("--save=", Path("save"), " ", Path("model"))), 0)
      << output_;
  ASSERT_EQ(Run("export_hf", absl::StrCat("--output=", Path("out"), " ", Path("save"))), 0)
      << output_;
  for (const std::string& name : names)
    EXPECT_EQ(Contents("out/" + name), Contents("model/" + name)) << name;
}

TEST_F(HfToolsTest, TheModelTypeIsTheOneThatIsAskedFor) {
  ModelOptions options = Llama(DType::kFloat32);
  options.transformer.rotary_options = RotaryOptions();  // mistral has no other
  WriteModel("model", options);
  ASSERT_EQ(Run("import_hf", absl::StrCat("--save=", Path("save"), " ", Path("model"))), 0)
      << output_;
  ASSERT_EQ(Run("export_hf",
                absl::StrCat("--model_type=mistral --output=", Path("out"), " ", Path("save"))),
            0)
      << output_;
  EXPECT_THAT(Contents("out/config.json"), HasSubstr("\"model_type\": \"mistral\""));
  EXPECT_TRUE(Contents("out/model.safetensors") == Contents("model/model.safetensors"));
  EXPECT_EQ(Run("export_hf", absl::StrCat("--model_type=gemma3_text --output=", Path("none"), " ",
                                          Path("save"))),
            20);
  EXPECT_THAT(output_, HasSubstr("gemma3_text has"));
}

TEST_F(HfToolsTest, ARunThatEndsWritesItsModel) {
  WriteModel("model", Llama(DType::kFloat32));
  ASSERT_EQ(Run("import_hf", absl::StrCat("--save=", Path("save"), " ", Path("model"))), 0);
  const auto train = [&](const std::string& more) {
    return Run("../megatron/train/pretrain_gpt",
               absl::StrCat("--config=", Path("save/config.textproto"),
                            " --set=checkpoint.save=", Path("tuned"),
                            " --set=checkpoint.save_huggingface=", Path("theirs"), " ", more));
  };
  // With fewer steps than it was to make, it is not at its end.
  EXPECT_EQ(train("--set=train.train_iters=3 --set=train.exit_interval=2"), 0) << output_;
  EXPECT_FALSE(fs_.Stat(Path("theirs/iter_0000002")).ok());
  ASSERT_THAT(fs_.CreateDirs(Path("theirs/iter_0000003.tmp/of_a_killed_run")), IsOk());
  EXPECT_EQ(train("--set=train.train_iters=3"), 0) << output_;
  EXPECT_THAT(output_, HasSubstr("theirs/iter_0000003"));
  EXPECT_FALSE(fs_.Stat(Path("theirs/iter_0000003.tmp")).ok());
  EXPECT_FALSE(fs_.Stat(Path("theirs/iter_0000003/of_a_killed_run")).ok());
  ASSERT_EQ(Run("export_hf", absl::StrCat("--output=", Path("out"), " ", Path("tuned"))), 0)
      << output_;
  for (const char* name : {"config.json", "model.safetensors"})
    EXPECT_TRUE(Contents(absl::StrCat("theirs/iter_0000003/", name)) ==
                Contents(absl::StrCat("out/", name)));
  // What is there stays, and the log says so.
  EXPECT_EQ(train("--set=train.train_iters=3"), 0) << output_;
  EXPECT_THAT(output_, HasSubstr("is there already"));
  // Checkpoints have the names that the models would have.
  EXPECT_NE(train(absl::StrCat("--set=checkpoint.save_huggingface=", Path("tuned"))), 0);
  EXPECT_THAT(output_, HasSubstr("is checkpoint.save"));
  // A model that they do not have is refused before training.
  EXPECT_NE(Run("../megatron/train/pretrain_gpt",
                absl::StrCat("--config=gpt_demo --set=model.position_embedding_type=none"
                             " --set=checkpoint.save=",
                             Path("none"), " --set=checkpoint.save_huggingface=", Path("theirs"))),
            0);
  EXPECT_THAT(output_, HasSubstr("checkpoint.save_huggingface"));
  EXPECT_FALSE(fs_.Stat(Path("none")).ok());
}

TEST_F(HfToolsTest, AnExportTakesThePlaceOfWhatAKilledOneLeft) {
  WriteModel("model", Gpt2());
  ASSERT_EQ(Run("import_hf", absl::StrCat("--save=", Path("save"), " ", Path("model"))), 0);
  const std::string arguments = absl::StrCat("--output=", Path("out"), " ", Path("save"));
  ASSERT_THAT(WriteFileAtomically(fs_, Path("out.tmp"), "a file"), IsOk());
  EXPECT_EQ(Run("export_hf", arguments), 20);
  EXPECT_THAT(output_, HasSubstr("/out.tmp' is no directory"));
  EXPECT_EQ(Contents("out.tmp"), "a file");
  ASSERT_THAT(fs_.Remove(Path("out.tmp")), IsOk());

  ASSERT_THAT(fs_.CreateDirs(Path("out.tmp")), IsOk());
  ASSERT_THAT(WriteFileAtomically(fs_, Path("out.tmp/half.safetensors"), "half"), IsOk());
  ASSERT_THAT(WriteFileAtomically(fs_, Path("out.lock"), ""), IsOk());
  EXPECT_EQ(Run("export_hf", arguments), 0) << output_;
  EXPECT_TRUE(Contents("out/model.safetensors") == Contents("model/model.safetensors"));
  EXPECT_FALSE(fs_.Stat(Path("out/half.safetensors")).ok());
  EXPECT_FALSE(fs_.Stat(Path("out.tmp")).ok());
  EXPECT_FALSE(fs_.Stat(Path("out.lock")).ok());
}

TEST_F(HfToolsTest, WithoutATokenizerEosAndPadIdsAreKept) {
  WriteModel("model", T5(true));
  std::string config = Contents("model/config.json");
  config.replace(config.find("\"eos_token_id\": null"), 20, "\"eos_token_id\": [5, 7]");
  config.replace(config.find("\"pad_token_id\": 0"), 17, "\"pad_token_id\": 3");
  ASSERT_THAT(WriteFileAtomically(fs_, Path("model/config.json"), config), IsOk());
  ASSERT_EQ(Run("import_hf", absl::StrCat("--save=", Path("save"), " ", Path("model"))), 0)
      << output_;
  ASSERT_EQ(Run("export_hf", absl::StrCat("--output=", Path("out"), " ", Path("save"))), 0)
      << output_;
  EXPECT_THAT(Contents("out/config.json"),
              AllOf(HasSubstr("\"eos_token_id\": 5"), HasSubstr("\"pad_token_id\": 3")));
}

TEST_F(HfToolsTest, AVocabularyFileAloneIsBertsTokenizer) {
  ModelOptions options = Bert();
  options.vocab_size = options.padded_vocab_size = 6;
  const std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nOwl\n";
  for (const bool lower_case : {true, false}) {
    const std::string name = lower_case ? "lower" : "cased";
    WriteModel("model", options);
    ASSERT_THAT(WriteFileAtomically(fs_, Path("model/vocab.txt"), vocabulary), IsOk());
    const std::string config =
        absl::StrCat("{\"do_lower_case\": ", lower_case ? "true" : "false", "}");
    ASSERT_THAT(WriteFileAtomically(fs_, Path("model/tokenizer_config.json"), config), IsOk());
    ASSERT_EQ(Run("import_hf", absl::StrCat("--save=", Path(name), " ", Path("model"))), 0)
        << output_;
    EXPECT_THAT(Contents(name + "/config.textproto"),
                HasSubstr(lower_case ? "BertWordPieceLowerCase" : "BertWordPieceCase"));
    const std::string out = name + "_out";
    ASSERT_EQ(Run("export_hf", absl::StrCat("--output=", Path(out), " ", Path(name))), 0)
        << output_;
    EXPECT_EQ(Contents(out + "/vocab.txt"), vocabulary);
    EXPECT_THAT(Contents(out + "/tokenizer_config.json"),
                HasSubstr(absl::StrCat("\"do_lower_case\": ", lower_case ? "true" : "false")));
    EXPECT_THAT(Contents(out + "/config.json"), HasSubstr("\"pad_token_id\": 0"));
  }
}

TEST_F(HfToolsTest, PathsInTheConfigurationHoldFromAnyDirectory) {
  WriteModel("model", RowsForTokens());
  WriteTokenizer("model");
  const std::string tools = absl::StrCat("\"$PWD/tools/import_hf\"");
  const std::string command = absl::StrCat("tool=", tools, "; cd ", directory_,
                                           " && \"$tool\" --save=save model > /dev/null 2>&1");
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_THAT(Contents("save/config.textproto"),
              AllOf(HasSubstr(absl::StrCat("load: \"", Path("save"), "\"")),
                    HasSubstr(absl::StrCat("vocab_file: \"", Path("save/tokenizer/vocab.json")))));
  EXPECT_EQ(Run("export_hf", absl::StrCat("--output=", Path("out"), " ", Path("save"))), 0)
      << output_;
}

TEST_F(HfToolsTest, AnImportThatFailsLeavesNothing) {
  WriteModel("model", RowsForTokens());
  WriteTokenizer("model");
  // No file may have more than 16 KiB, which is enough for the tokenizer and not for the weights.
  const std::string arguments = absl::StrCat("--save=", Path("save"), " ", Path("model"));
  const std::string limit = "trap '' XFSZ; ulimit -f 32; ";
  EXPECT_EQ(RunBehind(limit, "import_hf", arguments), 23);
  EXPECT_THAT(output_, HasSubstr("File too large"));
  EXPECT_FALSE(fs_.Stat(Path("save")).ok());
  // This import must not remove what was there before.
  ASSERT_THAT(fs_.CreateDirs(Path("save/tokenizer")), IsOk());
  EXPECT_EQ(Run("import_hf", arguments), 20);
  EXPECT_THAT(output_, HasSubstr("/save/tokenizer' is there already"));
  EXPECT_TRUE(fs_.Stat(Path("save/tokenizer")).ok());
  ASSERT_THAT(fs_.RemoveTree(Path("save/tokenizer")), IsOk());
  ASSERT_THAT(WriteFileAtomically(fs_, Path("save/config.textproto"), "# by hand"), IsOk());
  EXPECT_EQ(Run("import_hf", arguments), 20);
  EXPECT_THAT(output_, HasSubstr("/save/config.textproto' is there already"));
  EXPECT_EQ(Contents("save/config.textproto"), "# by hand");
}

TEST_F(HfToolsTest, AnImportTakesThePlaceOfWhatAKilledOneLeft) {
  WriteModel("model", RowsForTokens());
  WriteTokenizer("model");
  const std::string arguments = absl::StrCat("--save=", Path("save"), " ", Path("model"));
  const std::string unfinished = Path("save/import_hf.unfinished");
  ASSERT_EQ(Run("import_hf", arguments), 0) << output_;
  EXPECT_FALSE(fs_.Stat(unfinished).ok());
  const std::string config = Contents("save/config.textproto");

  // An import that was killed while it wrote the weights.
  ASSERT_THAT(fs_.RemoveTree(Path("save")), IsOk());
  ASSERT_THAT(fs_.CreateDirs(Path("save/tokenizer")), IsOk());
  ASSERT_THAT(fs_.CreateDirs(Path("save/iter_0000000.tmp")), IsOk());
  ASSERT_THAT(WriteFileAtomically(fs_, unfinished, ""), IsOk());
  ASSERT_THAT(WriteFileAtomically(fs_, Path("save/tokenizer/tokenizer.json"), "{"), IsOk());
  EXPECT_EQ(Run("import_hf", arguments), 0) << output_;
  EXPECT_EQ(Contents("save/config.textproto"), config);
  EXPECT_FALSE(fs_.Stat(Path("save/tokenizer/tokenizer.json")).ok());
  EXPECT_FALSE(fs_.Stat(unfinished).ok());

  // An import that was killed between the checkpoint and the configuration.
  ASSERT_THAT(fs_.Remove(Path("save/config.textproto")), IsOk());
  ASSERT_THAT(WriteFileAtomically(fs_, unfinished, ""), IsOk());
  EXPECT_EQ(Run("import_hf", arguments), 0) << output_;
  EXPECT_EQ(Contents("save/config.textproto"), config);
  EXPECT_FALSE(fs_.Stat(unfinished).ok());

  // The checkpoints of a training stay.
  ASSERT_THAT(WriteFileAtomically(fs_, unfinished, ""), IsOk());
  ASSERT_THAT(WriteFileAtomically(fs_, Path("save/latest_checkpointed_iteration.txt"), "7\n"),
              IsOk());
  EXPECT_EQ(Run("import_hf", arguments), 20);
  EXPECT_THAT(output_, HasSubstr("holds a checkpoint already"));
}

TEST_F(HfToolsTest, RefusesFilesThatAreNotTheModel) {
  const ModelOptions options = Gpt2();
  std::vector<SafetensorsTensor> files = FilesOf(options);
  const std::string import = absl::StrCat("--save=", Path("save"), " ", Path("model"));

  files[1].name = "transformer.other";
  files[2].shape = {16};
  files[3].dtype = "F64";
  WriteModel("model", options, files);
  EXPECT_EQ(Run("import_hf", import), 21);
  EXPECT_THAT(output_,
              AllOf(HasSubstr("'transformer.wpe.weight' is missing"),
                    HasSubstr("'transformer.other' has no place"),
                    HasSubstr("'transformer.h.0.ln_1.weight' is F32 [16] and not F32 [32]"),
                    HasSubstr("'transformer.h.0.ln_1.bias' is F64")));

  files = FilesOf(options);
  files.push_back({"lm_head.weight", "F32", files[0].shape});  // other bytes than the embedding's
  WriteModel("model", options, files);
  EXPECT_EQ(Run("import_hf", import), 21);
  EXPECT_THAT(output_, HasSubstr("'lm_head.weight' differs from the embedding "
                                 "'transformer.wte.weight', and tie_word_embeddings is true"));

  ModelOptions bert = Bert();
  files = FilesOf(bert);
  files.push_back({"cls.predictions.decoder.bias", "F32", {bert.vocab_size}});
  WriteModel("model", bert, files);
  EXPECT_EQ(Run("import_hf", import), 21);
  EXPECT_THAT(output_, HasSubstr("'cls.predictions.decoder.bias' differs from "
                                 "'cls.predictions.bias', and tie_word_embeddings is true"));

  files = FilesOf(options);
  for (SafetensorsTensor& tensor : files) tensor.dtype = "F64";
  WriteModel("model", options, files);
  EXPECT_EQ(Run("import_hf", import), 20);
  EXPECT_THAT(output_, HasSubstr("F32, BF16 and F16"));
  EXPECT_FALSE(fs_.Stat(Path("save")).ok());
}

TEST_F(HfToolsTest, TakesWhatOlderVersionsWrote) {
  const ModelOptions options = Gpt2();
  std::vector<SafetensorsTensor> files = FilesOf(options);
  for (SafetensorsTensor& tensor : files) tensor.name.erase(0, std::string("transformer.").size());
  files.push_back({"h.0.attn.bias", "BOOL", {1, 1, 16, 16}});
  files.push_back({"h.0.attn.masked_bias", "F32", {}});
  WriteModel("model", options, files);
  EXPECT_EQ(Run("import_hf", absl::StrCat("--save=", Path("save"), " ", Path("model"))), 0)
      << output_;
}

TEST_F(HfToolsTest, OtherFailuresHaveTheirCodesAndLeaveNothing) {
  WriteModel("model", Gpt2());
  EXPECT_EQ(Run("import_hf", Path("model")), 20);
  EXPECT_EQ(Run("export_hf", Path("save")), 20);
  EXPECT_EQ(Run("import_hf", absl::StrCat("--save=", Path("save"), " ", Path("nothing"))), 21);
  EXPECT_EQ(Run("export_hf", absl::StrCat("--output=", Path("out"), " ", Path("nothing"))), 20);
  ASSERT_EQ(Run("import_hf", absl::StrCat("--save=", Path("save"), " ", Path("model"))), 0);
  EXPECT_EQ(Run("import_hf", absl::StrCat("--save=", Path("save"), " ", Path("model"))), 20);
  EXPECT_THAT(output_, HasSubstr("holds a checkpoint already"));
  EXPECT_EQ(Run("export_hf", absl::StrCat("--output=", Path("model"), " ", Path("save"))), 20);
  EXPECT_THAT(output_, HasSubstr("is there already"));
  EXPECT_EQ(
      Run("export_hf", absl::StrCat("--vocab_size=129 --output=", Path("out"), " ", Path("save"))),
      20);
  EXPECT_THAT(output_, HasSubstr("128 rows"));

  const std::string shard = Path("save/iter_0000000/shard_00000_of_00001.bin");
  std::string contents = *ReadFileToString(fs_, shard);
  contents.back() ^= 1;
  ASSERT_THAT(WriteFileAtomically(fs_, shard, contents), IsOk());
  EXPECT_EQ(Run("export_hf", absl::StrCat("--output=", Path("out"), " ", Path("save"))), 22);
  EXPECT_FALSE(fs_.Stat(Path("out")).ok());
  EXPECT_FALSE(fs_.Stat(Path("out.tmp")).ok());

  const std::string config = Path("model/config.json");
  std::string text = *ReadFileToString(fs_, config);
  text.replace(text.find("gelu_new"), 8, "relu");
  ASSERT_THAT(WriteFileAtomically(fs_, config, text), IsOk());
  EXPECT_EQ(Run("import_hf", absl::StrCat("--save=", Path("save2"), " ", Path("model"))), 20);
  EXPECT_THAT(output_, AllOf(HasSubstr(config), HasSubstr("activation_function")));
}

}  // namespace
}  // namespace megatron
