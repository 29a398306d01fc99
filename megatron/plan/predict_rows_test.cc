#include "megatron/plan/predict_rows.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.h"
#include "megatron/plan/step_prediction.h"

namespace megatron {
namespace {

MeasuredKernels BuiltInKernels() {
  const auto table = ParseCsv(BuiltInMeasuredKernels());
  EXPECT_TRUE(table.ok()) << table.status();
  const auto kernels = MeasuredKernels::Parse(*table);
  EXPECT_TRUE(kernels.ok()) << kernels.status();
  return *kernels;
}

CsvTable Predicted(const std::string& text, const std::string& assume = "") {
  const auto facts = ParsePlanFacts(BuiltInPlanFacts());
  EXPECT_TRUE(facts.ok()) << facts.status();
  const auto rows = ParseCsv(text);
  EXPECT_TRUE(rows.ok()) << rows.status();
  const auto assumptions = ParseAssumptions(assume);
  EXPECT_TRUE(assumptions.ok()) << assumptions.status();
  const auto predicted = PredictRows(*facts, BuiltInKernels(), *rows, *assumptions);
  EXPECT_TRUE(predicted.ok()) << predicted.status();
  return *predicted;
}

double Cell(const CsvTable& table, const std::string& column) {
  for (size_t i = 0; i < table.columns.size(); ++i) {
    if (table.columns[i] == column) return std::stod("0" + table.rows[0][i]);
  }
  return NAN;
}

// Narayanan et al. (2021), table 1, 145B: 24.82 s.
TEST(PredictRowsTest, PredictsAPublishedRun) {
  const CsvTable table = Predicted(
      "model,layers,hidden,heads,seq,vocab,gpu,gpus,tp,pp,vpp,dp,mbs,gbs,recompute,dtype\n"
      "145B,80,12288,96,2048,51200,A100-80GB SXM,1536,8,8,2,24,2,2304,full,fp16\n");
  EXPECT_NEAR(Cell(table, "predicted_step_s"), 24.82, 0.1 * 24.82);
}

struct Published {
  const char* row;
  double measured;
  double error;
};

// Rows of SimuMax's table of measured B200 runs.
TEST(PredictRowsTest, PredictsB200Runs) {
  const std::string header =
      "model,layers,gpus,gpu,tp,cp,pp,dp,ep,seq,mbs,microbatches,dtype,recompute,implementation\n";
  const std::string rest = ",bf16,none,megatron_core_0_14\n";
  for (const Published& run :
       {Published{"llama3_70b,12,8,B200-SXM,2,1,1,4,1,4096,1,4", 0.7255, 0.04},
        Published{"llama3_405b,4,8,B200-SXM,8,1,1,1,1,4096,1,8", 0.4881, 0.04},
        Published{"deepseekv3,4,8,B200-SXM,1,1,2,4,4,4096,1,8", 0.7716, 0.08},
        Published{"llama3_70b,12,8,B200-SXM,1,8,1,1,1,131072,1,4", 11.3019, 0.04}}) {
    EXPECT_NEAR(Cell(Predicted(header + run.row + rest), "predicted_step_s"), run.measured,
                run.error * run.measured)
        << run.row;
  }
  for (const Published& run :
       {Published{"llama3_70b,12,8,B200-SXM,1,1,2,4,1,4096,1,4", 66.55, 0.02},
        Published{"llama3_405b,4,8,B200-SXM,8,1,1,1,1,4096,1,4", 38.57, 0.02},
        Published{"deepseekv2,4,8,B200-SXM,1,1,1,8,8,4096,1,4", 45.63, 0.02},
        Published{"deepseekv3,4,8,B200-SXM,1,1,2,4,4,4096,1,4", 114.0, 0.02}}) {
    EXPECT_NEAR(Cell(Predicted(header + run.row + rest), "predicted_memory_GiB"), run.measured,
                run.error * run.measured)
        << run.row;
  }
}

TEST(PredictRowsTest, ReadsTheSchemeOfARow) {
  const std::string header = "scheme,layers,hidden,heads,seq,gpu,gpus,gbs\n";
  const std::string shape = ",96,12288,96,2048,A100-80GB,768,1536\n";
  const double given = Cell(Predicted("tp,pp," + header + "8,12,x" + shape), "predicted_step_s");
  EXPECT_GT(given, 0);
  EXPECT_EQ(Cell(Predicted(header + "PTD (tp8 pp12)" + shape), "predicted_step_s"), given);
  const double plain = Cell(Predicted(header + shape), "predicted_memory_GiB");
  EXPECT_LT(Cell(Predicted(header + "ZeRO-3" + shape), "predicted_memory_GiB"), plain / 2);
}

TEST(PredictRowsTest, AssumesWhatARowLeavesOut) {
  const CsvTable table =
      Predicted("model,gpus,tp,pp,gbs,seq\nLlama2-7B,8,1,1,128,4096\n", "gpu=H100,dtype=fp8");
  EXPECT_EQ(table.rows[0].back(), "");
  const std::string assumed = table.rows[0][table.rows[0].size() - 2];
  EXPECT_NE(assumed.find("gpu=H100"), std::string::npos) << assumed;
  EXPECT_NE(assumed.find("dtype=fp8"), std::string::npos) << assumed;
}

TEST(PredictRowsTest, ExpertsLieOnTheRanksOfAStage) {
  const auto predicted = [](const std::string& row) {
    return Predicted("model,gpu,gpus,tp,pp,ep,etp,gbs,seq\n" + row + "\n");
  };
  // An expert is cut for the tensor-parallel ranks where etp is empty.
  for (const char* row :
       {"Mixtral-8x7B,H100,8,8,1,8,,8,4096", "Mixtral-8x7B,H100,64,1,16,8,1,64,4096",
        "Mixtral-8x7B,H100,6,1,1,4,1,6,4096"}) {
    const CsvTable table = predicted(row);
    EXPECT_NE(table.rows[0].back().find("must divide the "), std::string::npos) << row;
    EXPECT_EQ(Cell(table, "predicted_step_s"), 0) << row;
  }
  for (const char* row :
       {"Mixtral-8x7B,H100,8,8,1,8,1,8,4096", "Mixtral-8x7B,H100,64,8,1,8,,8,4096",
        "Llama2-7B,H100,8,1,1,1,3,8,4096"}) {
    EXPECT_GT(Cell(predicted(row), "predicted_step_s"), 0) << row << predicted(row).rows[0].back();
  }
}

TEST(PredictRowsTest, ARowThatCanNotBeHasItsReason) {
  for (const char* row : {"nobody,H100,8,1,1,128,4096", "Llama2-7B,Z80,8,1,1,128,4096",
                          "Llama2-7B,H100,8,3,1,128,4096", "Llama2-7B,H100,8,1,1,127,4096",
                          "Llama2-7B,H100,8,1,1,128,", "Llama2-7B,H100,8,x,1,128,4096",
                          "Llama2-7B,H100,-8,1,1,128,4096"}) {
    const CsvTable table = Predicted(std::string("model,gpu,gpus,tp,pp,gbs,seq\n") + row + "\n");
    EXPECT_FALSE(table.rows[0].back().empty()) << row;
    EXPECT_EQ(Cell(table, "predicted_step_s"), 0) << row;
  }
}

TEST(PredictStepTest, PartsAddUpToTheStep) {
  const auto facts = ParsePlanFacts(BuiltInPlanFacts());
  ASSERT_TRUE(facts.ok()) << facts.status();
  PlanLayout layout;
  layout.tp = 8;
  layout.pp = 8;
  layout.cp = 2;
  layout.dp = 8;
  layout.vpp = 2;
  layout.micro_batches = 32;
  layout.sequence = 8192;
  layout.is_sequence_parallel = true;
  const auto step =
      PredictStep(**FindHardware(*facts, "H100"), **FindImplementation(*facts, "megatron_core"),
                  BuiltInKernels(), **FindPlanModel(*facts, "LLAMA3.1_405B"), layout);
  ASSERT_TRUE(step.ok()) << step.status();
  const StepSeconds& s = step->seconds;
  EXPECT_NEAR(s.total,
              s.compute + s.tensor_parallel + s.context_parallel + s.expert_parallel + s.messages +
                  s.bubble + s.data_parallel + s.host_link + s.optimizer + s.constant,
              1e-9 * s.total);
  EXPECT_NEAR(step->total_parameters, 405.9e9, 0.01 * 405.9e9);
}

TEST(PredictStepTest, HasAllParametersInEveryLayout) {
  const auto facts = ParsePlanFacts(BuiltInPlanFacts());
  ASSERT_TRUE(facts.ok()) << facts.status();
  const auto parameters = [&](const char* model, int64_t tp, int64_t pp, int64_t ep, int64_t etp) {
    PlanLayout layout;
    layout.tp = tp;
    layout.pp = pp;
    layout.ep = ep;
    layout.etp = etp;
    layout.dp = 8;
    layout.sequence = 4096;
    const auto step =
        PredictStep(**FindHardware(*facts, "H100"), **FindImplementation(*facts, "megatron_core"),
                    BuiltInKernels(), **FindPlanModel(*facts, model), layout);
    EXPECT_TRUE(step.ok()) << step.status();
    return step->total_parameters;
  };
  EXPECT_NEAR(parameters("Mixtral-8x7B", 1, 1, 1, 1), 46.7e9, 0.01 * 46.7e9);
  EXPECT_NEAR(parameters("DeepSeek-V3", 1, 1, 1, 1), 671e9, 0.01 * 671e9);
  for (const char* model : {"Mixtral-8x7B", "DeepSeek-V3"}) {
    const double whole = parameters(model, 1, 1, 1, 1);
    // Norms and routers are on every tensor-parallel rank, and are counted as often.
    EXPECT_NEAR(parameters(model, 2, 1, 8, 1), whole, 0.01 * whole);
    EXPECT_NEAR(parameters(model, 2, 4, 4, 2), whole, 0.01 * whole);
  }
}

TEST(PlanFactsTest, ErrorsNameTheFieldOrTheLine) {
  EXPECT_FALSE(ParsePlanFacts("hardware { speed: 3 }").ok());
  EXPECT_FALSE(ParsePlanFacts("model { name: 'x' layers: 2 hidden: 1e30 }").ok());
  const auto facts = ParsePlanFacts("hardware { name: 'x' bf16_tflops: -1 }");
  EXPECT_NE(facts.status().message().find("bf16_tflops"), std::string::npos) << facts.status();
}

// A GPT of 12288 columns on 64 tensor-parallel ranks in one domain of fast links: squares are
// slower than 1D with 8192 tokens, and faster with 65536.
TEST(PredictRowsTest, PricesGridsOfTensorParallelRanks) {
  const auto seconds = [](const std::string& mode, int sequence) {
    const CsvTable table = Predicted(
        "model,layers,hidden,heads,gpu,gpus,tp,tp_mode,tp_depth,seq,mbs,microbatches\n"
        "175B,96,12288,128,GB200,64,64," +
        mode + "," + std::to_string(sequence) + ",16,1\n");
    EXPECT_EQ(table.rows[0].back(), "") << mode;
    return Cell(table, "predicted_step_s");
  };
  EXPECT_LT(seconds("1d,", 512), seconds("2d,", 512));
  EXPECT_LT(seconds("2d,", 512), seconds("2.5d,4", 512));
  EXPECT_LT(seconds("3d,", 4096), seconds("1d,", 4096));
  EXPECT_LT(seconds("2d,", 4096), seconds("1d,", 4096));
}

TEST(PredictRowsTest, RefusesWhatTensorParallelRanksCanNotShare) {
  const auto error = [](const std::string& cells) {
    const CsvTable table = Predicted(
        "model,layers,hidden,heads,gpu,gpus,tp,tp_mode,tp_depth,mbs,seq,microbatches,sp\n"
        "175B,96,12288,96,GB200," +
        cells + "\n");
    if (!table.rows[0].back().empty()) {
      EXPECT_EQ(Cell(table, "predicted_step_s"), 0);
    }
    return table.rows[0].back();
  };
  EXPECT_EQ(error("8,8,1d,,1,2048,1,"), "");
  EXPECT_EQ(error("8,8,2d,,16,2048,1,"),
            "tp_mode 2d with tp 8: needs a square number of ranks: 4, 9, 16, ...");
  EXPECT_EQ(error("8,8,2.5d,4,16,2048,1,"),
            "tp_mode 2.5d with tp 8 and tp_depth 4: needs a square number of ranks, 4, 9, 16, ..., "
            "times the depth");
  EXPECT_EQ(error("8,8,2.5d,,16,2048,1,"),
            "tp_mode 2.5d with tp 8: needs a depth of 2 or more: one level of ranks is 2d");
  EXPECT_EQ(error("4,4,2.5d,1,16,2048,1,"),
            "tp_mode 2.5d with tp 4 and tp_depth 1: needs a depth of 2 or more: one level of ranks "
            "is 2d");
  EXPECT_EQ(error("16,16,2d,4,16,2048,1,"), "tp_depth 4 has no effect with tp_mode 2d");
  EXPECT_EQ(error("8,8,,2,16,2048,1,"), "tp_depth 2 has no effect with tp_mode 1d");
  EXPECT_EQ(error("16,16,2d,1,16,2048,1,"), "");
  EXPECT_EQ(error("16,16,3d,,16,2048,1,"),
            "tp_mode 3d with tp 16: needs a cubic number of ranks: 8, 27, 64, ...");
  EXPECT_EQ(error("8,8,4d,,16,2048,1,"), "tp_mode: '4d' is none of 1d, 2d, 2.5d, 3d");
  EXPECT_EQ(error("64,64,1d,,16,2048,1,"),
            "96 heads can't be shared out over 64 tensor-parallel ranks");
  EXPECT_EQ(error("64,64,2d,,4,2048,1,"),
            "4 samples of a micro-batch can't be shared out over 8 rows and columns");
  EXPECT_EQ(error("8,8,3d,,2,2048,1,"),
            "2 samples of a micro-batch can't be shared out over 4 rows on all levels");
  EXPECT_EQ(error("8,8,3d,,4,2048,1,1"), "sp: the ranks of a grid share out rows already");
}

// 175B on 8 GPUs needs more than they have.
TEST(PredictRowsTest, SaysWhetherTheMemoryFitsAndHowRowsAreShared) {
  const auto cells = [](const std::string& gpus, const std::string& sp) {
    return Predicted(
        "model,layers,hidden,heads,gpu,gpus,tp,pp,mbs,seq,microbatches,sp\n"
        "175B,96,12288,96,A100-80GB," +
        gpus + ",1,2048,1," + sp + "\n");
  };
  const auto text = [](const CsvTable& table, const char* column) {
    const auto found = std::find(table.columns.begin(), table.columns.end(), column);
    return table.rows[0][found - table.columns.begin()];
  };
  EXPECT_EQ(text(cells("64,8,8", ""), "fits"), "yes");
  EXPECT_EQ(text(cells("8,8,1", ""), "fits"), "no: 80 GiB");
  // A100s were used by a program without sequence parallelism.
  EXPECT_NE(text(cells("64,8,8", ""), "assumed").find("sp=0"), std::string::npos);
  EXPECT_EQ(text(cells("64,8,8", "1"), "assumed").find("sp="), std::string::npos);
  EXPECT_LT(Cell(cells("64,8,8", "1"), "predicted_memory_GiB"),
            Cell(cells("64,8,8", "0"), "predicted_memory_GiB"));
}

}  // namespace
}  // namespace megatron
