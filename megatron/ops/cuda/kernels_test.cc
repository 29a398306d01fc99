#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/compression/group_codes.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/cuda/cuda_op_test.h"
#include "megatron/ops/cut_norm.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/optimizer.h"
#include "megatron/ops/rope.h"
#include "megatron/ops/sequence_part.h"
#include "megatron/ops/shared_key.h"
#include "megatron/ops/token_subset.h"
#include "megatron/ops/tolerances.h"
#include "megatron/ops/weighted_sum.h"

namespace megatron::ops {
namespace {

INSTANTIATE_TEST_SUITE_P(DTypes, CudaOpTest,
                         ::testing::Values(kF32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& info) { return std::string(Name(info.param)); });

constexpr int64_t kSizes[] = {1, 7, 64, 1000, 1024, 70001};

TEST_P(CudaOpTest, ActivationsAndTheirGradients) {
  for (Activation activation :
       {Activation::kNone, Activation::kGeluTanh, Activation::kGeluErf, Activation::kSquaredRelu,
        Activation::kTanh, Activation::kQuickGelu, Activation::kSigmoid}) {
    for (int64_t size : kSizes) {
      HostTensor x = Normal({1, size}, 1), y = Normal({1, size}, 2), dy = Normal({1, size}, 3),
                 dx = Normal({1, size}, 4);
      ExpectAgreement({&x, &y, &dy, &dx}, tolerance(), [&](const Stream& stream, At at) {
        ActivationForward(stream, activation, at[0], at[1]);
        ActivationBackward(stream, activation, at[2], at[0], at[3]);
      });
    }
  }
}

TEST_P(CudaOpTest, GradientsOfActivationsAndOfTheBiasesInFront) {
  for (const Shape& shape : {Shape{1, 8}, Shape{33, 7}, Shape{150, 264}, Shape{1100, 40}}) {
    HostTensor x = Normal(shape, 1), dy = Normal(shape, 2), dx = Normal(shape, 3),
               dbias = HostTensor::Normal({shape[1]}, kF32, 4);
    ExpectAgreement({&x, &dy, &dx, &dbias}, SumTolerance(dtype()), [](const Stream& s, At at) {
      ActivationBackwardAndBias(s, Activation::kGeluTanh, at[1], at[0], at[2], at[3]);
      ActivationBackwardAndBias(s, Activation::kSquaredRelu, at[1], at[0], at[1], at[3]);
    });
  }
}

TEST_P(CudaOpTest, GatesAndTheirGradients) {
  for (int64_t features : {1, 33, 256, 264}) {
    HostTensor gate_up = Normal({19, 2 * features}, 1), y = Normal({19, features}, 2),
               dy = Normal({19, features}, 3), d_gate_up = Normal({19, 2 * features}, 4);
    ExpectAgreement({&gate_up, &y, &dy, &d_gate_up}, tolerance(), [&](const Stream& stream, At at) {
      const Gate gate = features == 33    ? Gate(Activation::kGeluTanh)
                        : features == 264 ? Gate(Activation::kQuickGelu, 0.75f, 1)
                                          : Gate(Activation::kSilu);
      GateForward(stream, gate, at[0], at[1]);
      GateBackward(stream, gate, at[2], at[0], at[3]);
    });
  }
}

TEST_P(CudaOpTest, CopiesConvertAndKeepStrides) {
  for (DType to : {kF32, DType::kBFloat16, DType::kFloat16}) {
    for (int64_t size : kSizes) {
      HostTensor in = Normal({3, size}, 1), out = HostTensor::Normal({3, size}, to, 2),
                 wide = HostTensor::Normal({3, 2 * size}, to, 3);
      ExpectAgreement({&in, &out, &wide}, OpTolerance(to), [&](const Stream& stream, At at) {
        Copy(stream, at[0], at[1]);
        Copy(stream, at[0], at[2].Slice(1, size, 2 * size));
      });
    }
  }
}

// Some dims are one dim together, one has one element, and vectors are aligned or not.
TEST_P(CudaOpTest, CopiesOfSlices) {
  for (int64_t first : {0, 3, 8}) {
    for (int64_t width : {8, 13, 64}) {
      const Shape shape = {5, 1, 3, 4, width};
      HostTensor in = Normal({5, 1, 3, 6, 72}, 1), out = Normal({5, 1, 3, 4, 80}, 2),
                 packed = Normal(shape, 3), bytes({7, 48}, DType::kUInt8),
                 part({7, 32}, DType::kUInt8);
      ExpectAgreement({&in, &out, &packed, &bytes, &part}, 0, [&](const Stream& stream, At at) {
        const Tensor slice = at[0].Slice(3, 1, 5).Slice(4, first, first + width);
        Copy(stream, slice, at[1].Slice(4, 16, 16 + width));
        Copy(stream, slice, at[2]);
        Copy(stream, at[3].Slice(1, first, first + 32), at[4]);
      });
    }
  }
}

// The message is compared too: all bits are the CPU's. The last group is smaller than the others,
// and a slice begins where no vector does.
TEST_P(CudaOpTest, CodesOfGroups) {
  for (CodeBits bits : {CodeBits::k4, CodeBits::k8}) {
    for (int64_t size : kSizes) {
      HostTensor x = Normal({size}, 1), message({GroupMessageBytes(bits, size)}, DType::kUInt8),
                 received = Normal({size + 1}, 2), sum = HostTensor::Normal({size}, kF32, 3);
      ExpectAgreement({&x, &message, &received, &sum}, 0, [&](const Stream& stream, At at) {
        EncodeGroups(stream, bits, at[0], at[1]);
        DecodeGroups(stream, bits, at[1], at[2].Slice(0, 1, size + 1));
        AddDecodedGroups(stream, bits, at[1], at[3]);
        DecodeGroups(stream, bits, at[1], at[0]);
      });
    }
  }
}

// Groups of zeros, and of magnitudes of which fp32 has few digits or which are nearly infinite.
// Their doubles make groups with infinities; those become zeros before operands are compared.
TEST_F(AgreementTest, CodesOfUnusualGroups) {
  for (CodeBits bits : {CodeBits::k4, CodeBits::k8}) {
    std::vector<double> values;
    for (const double largest : {0.0, 1.4e-45, 1e-44, 3e38}) {
      for (int64_t i = 0; i < GroupSize(bits); ++i)
        values.push_back(i % 3 == 0 ? largest : i % 3 == 1 ? -largest : largest / 3);
    }
    const auto size = static_cast<int64_t>(values.size());
    const Shape message_shape = {GroupMessageBytes(bits, size)};
    HostTensor x = HostTensor::Of({size}, kF32, values), message(message_shape, DType::kUInt8),
               with_infinities(message_shape, DType::kUInt8);
    ExpectAgreement({&x, &message, &with_infinities}, 0, [&](const Stream& stream, At at) {
      EncodeGroups(stream, bits, at[0], at[1]);
      Add(stream, at[0], at[0]);
      EncodeGroups(stream, bits, at[0], at[2]);
      Zero(stream, at[0]);
    });
  }
}

TEST_P(CudaOpTest, SumsScalesCapsAndZeros) {
  for (int64_t size : kSizes) {
    HostTensor x = Normal({size}, 1), y = Normal({size}, 2), z = Normal({size}, 3),
               scaled = HostTensor::Normal({size}, kF32, 4),
               summand = HostTensor::Normal({size}, kF32, 5), sum = Normal({size}, 6);
    ExpectAgreement({&x, &y, &z, &scaled, &summand, &sum}, tolerance(),
                    [](const Stream& stream, At at) {
                      Add(stream, at[0], at[1]);
                      Add(stream, at[4], at[5]);
                      Zero(stream, at[2]);
                      Scale(stream, 0.37f, at[3]);
                      Scale(stream, 0.37f, at[2]);
                      SoftCap(stream, 0.8f, at[0]);
                    });
  }
}

// Masks must be the CPU's to the bit: a difference is not a rounding.
TEST_F(AgreementTest, JitterIsTheSame) {
  HostTensor x = HostTensor::Normal({5, 67}, DType::kFloat32, 1), out({5, 67}, DType::kFloat32),
             sample = HostTensor::Of({5}, DType::kInt64, {7, 7, 7, 4294967304.0, 4294967304.0}),
             position = HostTensor::Of({5}, DType::kInt32, {0, 1, 2, 0, 1});
  ExpectAgreement({&x, &out, &sample, &position}, 1e-6, [&](const Stream& stream, auto at) {
    Dropout random;
    random.key = {0x1234u, 0x5678u};
    random.sample_T = at[2];
    random.position_T = at[3];
    Jitter(stream, 0.3f, random, at[0], at[1]);
  });
}

TEST_P(CudaOpTest, DropoutDropsTheSameElements) {
  for (int64_t first_column : {0, 3, 1032}) {
    for (int64_t columns : {1, 6, 515, 768}) {
      HostTensor x = Normal({11, columns}, 1), bias = Normal({columns}, 2),
                 residual = Normal({11, columns}, 3), out = Poisoned({11, columns}),
                 dy = Normal({11, columns}, 5), dx = Poisoned({11, columns}),
                 dbias = HostTensor::Normal({columns}, kF32, 7),
                 sample = Cyclic(11, int64_t{1} << 40, int64_t{1} << 50, DType::kInt64),
                 position = Cyclic(11, 5, 8);
      ExpectAgreement({&x, &bias, &residual, &out, &dy, &dx, &dbias, &sample, &position},
                      tolerance(), [&](const Stream& stream, At at) {
                        Dropout dropout = {0.3f, {17, 4}, at[7], at[8], first_column};
                        BiasDropoutAdd(stream, dropout, at[0], at[1], at[2], at[3]);
                        DropoutBackward(stream, dropout, at[4], at[5], at[6]);
                        BiasDropoutAdd(stream, dropout, at[0], Tensor(), Tensor(), at[0]);
                      });
    }
  }
}

TEST_P(CudaOpTest, BackwardWithoutDropoutOnlySumsTheBias) {
  HostTensor dy = Normal({300, 40}, 1), dx = Poisoned({300, 40}),
             dbias = HostTensor::Normal({40}, kF32, 2), dbias2 = HostTensor::Normal({40}, kF32, 3);
  ExpectAgreement({&dy, &dx, &dbias, &dbias2}, SumTolerance(dtype()),
                  [](const Stream& stream, At at) {
                    DropoutBackward(stream, Dropout(), at[0], at[1], at[2]);
                    DropoutBackward(stream, Dropout(), at[0], at[0], at[3]);
                  });
}

// The gradient of a bias that is added to the residual stream has the same bits, whether the
// backward of the norm behind computes it or a pass of its own.
TEST_P(CudaOpTest, BiasGradientsOfNormsAreThoseOfAPassOfTheirOwn) {
  for (const Shape& shape : {Shape{1700, 24}, Shape{37, 1032}, Shape{5, 1664}, Shape{9, 4104}}) {
    HostTensor x = Normal(shape, 1), gamma = Positive({shape[1]}, dtype(), 2),
               dy = Normal(shape, 3), dx = Poisoned(shape),
               dbias = HostTensor::Normal({shape[1]}, kF32, 4),
               alone = HostTensor::Normal({shape[1]}, kF32, 4),
               mean = HostTensor::Normal({shape[0]}, kF32, 5), rstd = Positive({shape[0]}, kF32, 6);
    ExpectAgreement({&x, &gamma, &dy, &dx, &dbias, &alone, &mean, &rstd}, 4 * SumTolerance(dtype()),
                    [](const Stream& stream, At at) {
                      const NormTensors tensors = {at[1], Tensor(), at[6], at[7]};
                      NormBackward(stream, Norm(), at[2], at[0], tensors, Tensor(), at[3], Tensor(),
                                   Tensor(), at[4]);
                      DropoutBackward(stream, Dropout(), at[3], at[3], at[5]);
                      // The difference is zero, and so is what it may be off.
                      Scale(stream, -1, at[5]);
                      Add(stream, at[5], at[4]);
                    });
  }
}

// LayerNorm and RMSNorm, the gain as it is and less one, and a LayerNorm without beta.
std::vector<Norm> AllNorms() {
  std::vector<Norm> norms;
  for (Norm::Kind kind : {Norm::kLayerNorm, Norm::kRmsNorm}) {
    for (bool zero_centered : {false, true}) norms.push_back({kind, 1e-5f, zero_centered});
  }
  norms.push_back({Norm::kLayerNorm, 1e-5f, /*zero_centered_gamma=*/false, /*bias=*/false});
  return norms;
}

TEST_P(CudaOpTest, NormsAndTheirGradients) {
  for (const Norm& norm : AllNorms()) {
    for (int64_t hidden : {5, 128, 1001, 1664}) {
      const int64_t rows = 37;
      HostTensor x = Normal({rows, hidden}, 1), residual = Normal({rows, hidden}, 2),
                 sum = Normal({rows, hidden}, 3), y = Normal({rows, hidden}, 4),
                 gamma = Positive({hidden}, dtype(), 5), beta = Normal({hidden}, 6),
                 dy = Normal({rows, hidden}, 7), dx = Normal({rows, hidden}, 8),
                 dgamma = HostTensor::Normal({hidden}, kF32, 9),
                 dbeta = HostTensor::Normal({hidden}, kF32, 10), mean({rows}, kF32),
                 rstd({rows}, kF32);
      ExpectAgreement(
          {&x, &residual, &sum, &y, &gamma, &beta, &dy, &dx, &dgamma, &dbeta, &mean, &rstd},
          4 * SumTolerance(dtype()), [&](const Stream& stream, At at) {
            const bool layer = norm.kind == Norm::kLayerNorm, has_beta = layer && norm.bias;
            const NormTensors tensors = {at[4], has_beta ? at[5] : Tensor(),
                                         layer ? at[10] : Tensor(), at[11]};
            ResidualNormForward(stream, norm, Dropout(), at[0], Tensor(), at[1], at[2], tensors,
                                at[3]);
            NormBackward(stream, norm, at[6], at[2], tensors, at[1], at[7], at[8],
                         has_beta ? at[9] : Tensor());
          });
    }
  }
}

// The columns are the first of 3 ranks', and the statistics are of all ranks' columns.
TEST_P(CudaOpTest, NormsOfCutRowsAndTheirGradients) {
  for (const Norm& norm : AllNorms()) {
    for (int64_t columns : {5, 128, 1001}) {
      const int64_t rows = 37;
      HostTensor x = Normal({rows, columns}, 1), residual = Normal({rows, columns}, 2),
                 y = Poisoned({rows, columns}), gamma = Positive({columns}, dtype(), 4),
                 beta = Normal({columns}, 5), dy = Normal({rows, columns}, 6),
                 dx = Poisoned({rows, columns}), dgamma = HostTensor::Normal({columns}, kF32, 8),
                 dbeta = HostTensor::Normal({columns}, kF32, 9),
                 dbias = HostTensor::Normal({columns}, kF32, 10), mean({rows}, kF32),
                 rstd({rows}, kF32), sums = Positive({3, rows, 2}, kF32, 11),
                 of_gradients({rows, 2}, kF32);
      ExpectAgreement({&x, &residual, &y, &gamma, &beta, &dy, &dx, &dgamma, &dbeta, &dbias, &mean,
                       &rstd, &sums, &of_gradients},
                      4 * SumTolerance(dtype()), [&](const Stream& stream, At at) {
                        const bool layer = norm.kind == Norm::kLayerNorm,
                                   has_beta = layer && norm.bias;
                        const NormTensors tensors = {at[3], has_beta ? at[4] : Tensor(),
                                                     layer ? at[10] : Tensor(), at[11]};
                        CutNormSums(stream, norm, at[0], at[12].Select(0, 0));
                        CutNormForward(stream, norm, at[0], at[12], tensors, at[2]);
                        CutNormGradientSums(stream, norm, at[5], at[0], tensors, at[13]);
                        CutNormBackward(stream, norm, 3 * columns, at[5], at[0], tensors, at[13],
                                        at[1], at[6], at[7], has_beta ? at[8] : Tensor(), at[9]);
                      });
    }
  }
}

// The sum has the bits of BiasDropoutAdd, and the norm of the sum those of NormForward: in rows of
// vectors (warps and blocks), in rows of single elements, and in rows of 48 KiB (in fp32 and in 16
// bits), which are too wide to be kept beside other shared memory.
TEST_P(CudaOpTest, NormsOfResidualSumsAreThoseOfTheSeparateOps) {
  for (int64_t hidden : {40, 1003, 2304, 12288, 24576}) {
    for (int64_t first_column : {0, 2}) {
      const int64_t rows = hidden == 40 ? 19 : 3;
      HostTensor x = Normal({rows, hidden}, 1), bias = Normal({hidden}, 2),
                 residual = Normal({rows, hidden}, 3), sum = Poisoned({rows, hidden}),
                 y = Poisoned({rows, hidden}), sum2 = Poisoned({rows, hidden}),
                 y2 = Poisoned({rows, hidden}), gamma = Positive({hidden}, dtype(), 4),
                 beta = Normal({hidden}, 5), mean({rows}, kF32), rstd({rows}, kF32),
                 mean2({rows}, kF32), rstd2({rows}, kF32),
                 sample = Cyclic(rows, int64_t{1} << 40, int64_t{1} << 50, DType::kInt64),
                 position = Cyclic(rows, 5, 8);
      ExpectAgreement({&x, &bias, &residual, &sum, &y, &sum2, &y2, &gamma, &beta, &mean, &rstd,
                       &mean2, &rstd2, &sample, &position},
                      4 * SumTolerance(dtype()), [&](const Stream& stream, At at) {
                        const Norm norm;
                        const Dropout dropout = {0.3f, {17, 4}, at[13], at[14], first_column};
                        const NormTensors tensors = {at[7], at[8], at[9], at[10]},
                                          tensors2 = {at[7], at[8], at[11], at[12]};
                        BiasDropoutAdd(stream, dropout, at[0], at[1], at[2], at[5]);
                        NormForward(stream, norm, at[5], tensors2, at[6]);
                        // The sum takes the residual's place.
                        Copy(stream, at[2], at[3]);
                        ResidualNormForward(stream, norm, dropout, at[0], at[1], at[3], at[3],
                                            tensors, at[4]);
                      });
      EXPECT_EQ(sum.Values(), sum2.Values());
      EXPECT_EQ(y.Values(), y2.Values());
      EXPECT_EQ(mean.Values(), mean2.Values());
      EXPECT_EQ(rstd.Values(), rstd2.Values());
    }
  }
}

// Rows held by a warp, by two, by more, by none; more rows than are taken at once.
TEST_P(CudaOpTest, NormGradientsOfRowsOfAnyWidth) {
  struct Sizes {
    int64_t rows, hidden;
  };
  for (const Sizes& size : {Sizes{1700, 24}, Sizes{1700, 264}, Sizes{5, 1032}, Sizes{5, 2304},
                            Sizes{140, 4104}, Sizes{3, 8200}, Sizes{3, 16392}, Sizes{410, 9}}) {
    const Shape shape = {size.rows, size.hidden};
    HostTensor x = Normal(shape, 1), gamma = Positive({size.hidden}, dtype(), 2),
               dy = Normal(shape, 3), dx = Poisoned(shape), around = Normal(shape, 4),
               dgamma = HostTensor::Normal({size.hidden}, kF32, 5),
               dbeta = HostTensor::Normal({size.hidden}, kF32, 6),
               mean = HostTensor::Normal({size.rows}, kF32, 7),
               rstd = Positive({size.rows}, kF32, 8),
               dbias = HostTensor::Normal({size.hidden}, kF32, 9);
    ExpectAgreement(
        {&x, &gamma, &dy, &dx, &around, &dgamma, &dbeta, &mean, &rstd, &dbias},
        4 * SumTolerance(dtype()), [&](const Stream& stream, At at) {
          const NormTensors tensors = {at[1], Tensor(), at[7], at[8]};
          NormBackward(stream, Norm(), at[2], at[0], tensors, at[4], at[3], at[5], at[6], at[9]);
          // The result takes dy's place, and there are no parameters.
          NormBackward(stream, Norm(), at[2], at[0], tensors, Tensor(), at[2], Tensor(), Tensor());
        });
  }
}

// The heads are views, as in a packed QKV.
TEST_P(CudaOpTest, NormsOfHeadsInPlace) {
  for (int64_t head : {16, 21, 320}) {
    HostTensor packed = Normal({7, 5, head + 24}, 1), gamma = Positive({head}, dtype(), 2),
               d_packed = Normal({7, 5, head + 24}, 3), x = Normal({7, 3, head}, 4),
               dgamma = HostTensor::Normal({head}, kF32, 5), rstd = Positive({21}, kF32, 6);
    ExpectAgreement({&packed, &gamma, &d_packed, &x, &dgamma, &rstd}, 4 * SumTolerance(dtype()),
                    [&](const Stream& stream, At at) {
                      const Norm norm = {Norm::kRmsNorm};
                      const NormTensors tensors = {at[1], Tensor(), Tensor(), at[5]};
                      const auto heads = [&](const Tensor& all) {
                        return all.Slice(1, 1, 4).Slice(2, 8, 8 + head);
                      };
                      NormBackward(stream, norm, heads(at[2]), at[3], tensors, Tensor(),
                                   heads(at[2]), at[4], Tensor());
                      NormForward(stream, norm, heads(at[0]), tensors, heads(at[0]));
                    });
  }
}

TEST_P(CudaOpTest, EmbeddingsAndTheirGradients) {
  for (int64_t columns : {1, 65, 256}) {
    for (int64_t first_row : {0, 20}) {
      // Ids below, inside and above the rows, many of them several times.
      HostTensor ids = Cyclic(301, 7, 60), table = Normal({30, columns}, 1),
                 y = Normal({301, columns}, 2), sum = Normal({301, columns}, 3),
                 dy = Normal({301, columns}, 4),
                 dtable = HostTensor::Normal({30, columns}, kF32, 5);
      ExpectAgreement({&ids, &table, &y, &sum, &dy, &dtable}, tolerance(),
                      [&](const Stream& stream, At at) {
                        EmbeddingForward(stream, at[0], at[1], first_row, false, at[2]);
                        EmbeddingForward(stream, at[0], at[1], first_row, true, at[3]);
                        EmbeddingBackward(stream, at[0], at[4], first_row, at[5]);
                      });
    }
  }
}

// Runs that end in the piece where they begin, that reach into the next, and that fill many.
TEST_P(CudaOpTest, EmbeddingGradientsOfFrequentTokens) {
  for (int64_t frequent : {0, 60, 130, 700}) {
    HostTensor ids = Cyclic(900, 7, 23), dy = Normal({900, 300}, 1),
               dtable = HostTensor::Normal({20, 300}, kF32, 2);
    for (int64_t i = 0; i < frequent; ++i) ids.Set(i * 3 % 900, i % 2 == 0 ? 5 : 21);
    ExpectAgreement({&ids, &dy, &dtable}, SumTolerance(dtype()), [&](const Stream& s, At at) {
      EmbeddingBackward(s, at[0], at[1], /*first_row=*/2, at[2]);
    });
  }
}

TEST_P(CudaOpTest, RopeOfAlignedHeads) {
  HostTensor cos({50, 16}, kF32), sin({50, 16}, kF32);
  std::vector<double> frequencies;
  for (int i = 0; i < 16; ++i) frequencies.push_back(1.0 / (1 + i));
  FillRopeTables(frequencies.data(), cos, sin);
  for (bool interleaved : {false, true}) {
    for (bool inverse : {false, true}) {
      HostTensor position = Cyclic(23, 3, 50), x = Normal({23, 2, 3, 40}, 1),
                 packed = Normal({23, 40, 48}, 2);
      ExpectAgreement(
          {&cos, &sin, &position, &x, &packed}, tolerance(), [&](const Stream& stream, At at) {
            Rope(stream, at[0], at[1], at[2], interleaved, inverse, at[3]);
            Rope(stream, at[0], at[1], at[2], interleaved, inverse, at[4].Slice(2, 8, 48));
          });
    }
  }
}

TEST_P(CudaOpTest, RopeThereAndBack) {
  HostTensor cos({50, 6}, kF32), sin({50, 6}, kF32);
  const std::vector<double> frequencies = {1, 0.5, 0.2, 0.1, 0.03, 0.01};
  FillRopeTables(frequencies.data(), cos, sin);
  for (bool interleaved : {false, true}) {
    for (bool inverse : {false, true}) {
      HostTensor position = Cyclic(23, 3, 50), x = Normal({23, 2, 3, 17}, 1),
                 packed = Normal({23, 4, 40}, 2);
      ExpectAgreement(
          {&cos, &sin, &position, &x, &packed}, tolerance(), [&](const Stream& stream, At at) {
            Rope(stream, at[0], at[1], at[2], interleaved, inverse, at[3]);
            Rope(stream, at[0], at[1], at[2], interleaved, inverse, at[4].Slice(2, 5, 21));
          });
    }
  }
}

TEST_P(CudaOpTest, CrossEntropyInItsParts) {
  for (int64_t columns : {1, 33, 512, 5000}) {
    for (const auto& [range, softcap] :
         {std::pair{VocabRange{0, 4990}, 0.0f}, std::pair{VocabRange{3000, 4990}, 5.0f}}) {
      const int64_t tokens = 21;
      HostTensor logits = Normal({tokens, columns}, 1), labels = Cyclic(tokens, 411, 5000),
                 weight = HostTensor::Normal({tokens}, kF32, 2), max({tokens}, kF32),
                 sum({tokens}, kF32), target({tokens}, kF32), loss({tokens}, kF32),
                 higher({tokens}, kF32), total = HostTensor::Normal({2}, kF32, 3),
                 hit({tokens}, kF32);
      weight.Set(3, 0);
      for (int64_t t = 0; t < tokens; ++t) higher.Set(t, 9);
      ExpectAgreement(
          {&logits, &labels, &weight, &max, &sum, &target, &loss, &higher, &total, &hit},
          SumTolerance(dtype()),
          [&, range = range, softcap = softcap](const Stream& stream, At at) {
            CrossEntropyStatistics(stream, at[0], at[1], range, at[3], at[4], at[5]);
            RescaleSum(stream, at[3], at[7], at[4]);
            CrossEntropyLoss(stream, at[7], at[4], at[5], at[6]);
            CrossEntropyHits(stream, at[3], at[5], at[9]);
            CrossEntropyBackward(stream, at[0], at[1], range, at[7], at[4], at[2], softcap);
            WeightedSum(stream, at[6], at[2], at[8]);
          });
    }
  }
}

// A cross-entropy of all columns. Rows of the last cases are too long for shared memory.
struct WholeRows {
  int64_t tokens, columns, vocab_size;
  float softcap;
};
constexpr WholeRows kWholeRows[] = {{5, 2, 2, 0},        {7, 33, 33, 0},     {7, 512, 501, 5},
                                    {3, 5000, 4990, 0},  {3, 5001, 4990, 5}, {3, 30001, 30000, 0},
                                    {3, 60000, 59990, 5}};

struct WholeRowsOperands {
  HostTensor logits, labels, weight, loss, hit;

  WholeRowsOperands(const WholeRows& rows, DType dtype)
      : logits(HostTensor::Normal({rows.tokens, rows.columns}, dtype, 1)),
        labels(Cyclic(rows.tokens, 411, rows.vocab_size)),
        weight(HostTensor::Normal({rows.tokens}, kF32, 2)),
        loss({rows.tokens}, kF32),
        hit({rows.tokens}, kF32) {
    // All words of the first token are equally likely.
    for (int64_t v = 0; v < rows.columns; ++v) logits.Set(v, 0.5);
    // A third of the words of the second one are impossible, where no cap keeps logits finite.
    for (int64_t v = 0; v < rows.vocab_size && rows.softcap == 0; v += 3) {
      if (v != static_cast<int64_t>(labels.Get(1)))
        logits.Set(rows.columns + v, -std::numeric_limits<double>::infinity());
    }
    // The last token does not count.
    labels.Set(rows.tokens - 1, -100);
    weight.Set(rows.tokens - 1, 0);
    for (int64_t t = 0; t < rows.tokens; ++t) {
      for (int64_t v = rows.vocab_size; v < rows.columns; ++v)
        logits.Set(t * rows.columns + v, std::numeric_limits<double>::quiet_NaN());
    }
  }
};

TEST_P(CudaOpTest, CrossEntropyOfWholeRows) {
  for (const WholeRows& rows : kWholeRows) {
    SCOPED_TRACE(rows.columns);
    WholeRowsOperands x(rows, dtype());
    ExpectAgreement({&x.logits, &x.labels, &x.weight, &x.loss, &x.hit}, SumTolerance(dtype()),
                    [&](const Stream& stream, At at) {
                      CrossEntropy(stream, at[0], at[1], {0, rows.vocab_size}, at[2], at[3], at[4],
                                   rows.softcap);
                    });
  }
}

// The differences are zeros, and so is what is not compared.
TEST_P(CudaOpTest, CrossEntropyOfWholeRowsHasTheBitsOfItsParts) {
  for (const WholeRows& rows : kWholeRows) {
    SCOPED_TRACE(rows.columns);
    WholeRowsOperands whole(rows, dtype()), parts(rows, dtype());
    HostTensor max({rows.tokens}, kF32), sum({rows.tokens}, kF32), target({rows.tokens}, kF32),
        evaluated({rows.tokens}, kF32);
    ExpectAgreement(
        {&whole.logits, &whole.loss, &whole.hit, &parts.logits, &parts.loss, &parts.hit,
         &whole.labels, &whole.weight, &max, &sum, &target, &evaluated},
        0, [&](const Stream& stream, At at) {
          const VocabRange range = {0, rows.vocab_size};
          const Tensor &labels = at[6], &weight = at[7];
          CrossEntropy(stream, at[0], labels, range, Tensor(), at[11], Tensor());
          CrossEntropy(stream, at[0], labels, range, weight, at[1], at[2], rows.softcap);
          CrossEntropyStatistics(stream, at[3], labels, range, at[8], at[9], at[10]);
          CrossEntropyLoss(stream, at[8], at[9], at[10], at[4]);
          CrossEntropyHits(stream, at[8], at[10], at[5]);
          CrossEntropyBackward(stream, at[3], labels, range, at[8], at[9], weight, rows.softcap);
          Scale(stream, -1, at[11]);
          Add(stream, at[1], at[11]);
          for (int i : {0, 1, 2}) {
            Scale(stream, -1, at[3 + i]);
            Add(stream, at[3 + i], at[i]);
          }
          for (int i : {3, 4, 5, 8, 9, 10}) Zero(stream, at[i]);
        });
    for (const HostTensor* difference : {&whole.logits, &whole.loss, &whole.hit, &evaluated}) {
      for (double value : difference->Values()) ASSERT_EQ(value, 0);
    }
  }
}

// A loss is a number if it is as large as itself.
TEST_P(CudaOpTest, CrossEntropyOfWholeRowsThatAreNoNumbers) {
  for (int64_t columns : {33, 512}) {
    constexpr int64_t kTokens = 3;
    HostTensor logits = Normal({kTokens, columns}, 1), labels = Ints({1, 1, -100}),
               weight = HostTensor::Of({kTokens}, kF32, {1, 0, 0}), loss({kTokens}, kF32),
               is_number({kTokens}, kF32);
    logits.Set(columns + 7, std::numeric_limits<double>::quiet_NaN());
    for (int64_t v = 0; v < columns; ++v)
      logits.Set(2 * columns + v, -std::numeric_limits<double>::infinity());
    ExpectAgreement({&logits, &labels, &weight, &loss, &is_number}, SumTolerance(dtype()),
                    [&](const Stream& stream, At at) {
                      CrossEntropy(stream, at[0], at[1], {0, columns}, at[2], at[3], Tensor());
                      CrossEntropyHits(stream, at[3], at[3], at[4]);
                      Zero(stream, at[3]);
                    });
    EXPECT_EQ(is_number.Values(), std::vector<double>({1, 0, 1}));
    for (int64_t i = columns; i < kTokens * columns; ++i) ASSERT_EQ(logits.Get(i), 0);
  }
}

TEST_P(CudaOpTest, SharedKeys) {
  for (const int64_t shared : {1, 8, 70}) {
    HostTensor packed = Normal({23, 3, 40}, 1), row = Normal({23, 100}, 2),
               key = Normal({23, 3, 24 + shared}, 3);
    ExpectAgreement({&packed, &row, &key}, tolerance(), [&](const Stream& stream, At at) {
      const Tensor own = at[0].Slice(2, 2, 26), of_all = at[1].Slice(1, 5, 5 + shared);
      JoinSharedKey(stream, own, of_all, at[2]);
      SplitSharedKey(stream, at[2], own, of_all);
    });
  }
}

// More tokens than boundaries, and more boundaries than tokens.
TEST_P(CudaOpTest, PartsOfSequences) {
  const HostTensor whole = HostTensor::Of({6}, DType::kInt32, {0, 3, 3, 400, 900, 900});
  for (const std::pair<int64_t, int64_t>& part :
       {std::pair<int64_t, int64_t>{0, 900}, {2, 5}, {300, 900}, {3, 3}}) {
    HostTensor in = HostTensor::Of({6}, DType::kInt32, whole.Values()), out({6}, DType::kInt32),
               place({part.second - part.first}, DType::kInt32);
    ExpectAgreement({&in, &out, &place}, 0, [&](const Stream& stream, At at) {
      PartOfSequences(stream, at[0], part.first, part.second, at[1], at[2]);
    });
  }
}

TEST_F(AgreementTest, KeptTokens) {
  struct Sizes {
    int64_t samples, length, count;
    int ranks;
  };
  for (const Sizes& size : {Sizes{1, 600, 300, 1}, Sizes{2, 320, 64, 2}, Sizes{2, 36, 12, 3},
                            Sizes{9, 8, 4, 2}, Sizes{2, 64, 64, 1}}) {
    const int64_t tokens = size.samples * size.length, kept = size.samples * size.count;
    const SampleCut cut = {size.ranks, size.ranks / 2};
    const auto ints = [](int64_t count) { return HostTensor({count}, DType::kInt32); };
    HostTensor sample({tokens / size.ranks}, DType::kInt64),
        kept_K = ints(kept), place = ints(tokens), row = ints(kept),
        place_here = ints(tokens / size.ranks), bypass = ints(tokens / size.ranks),
        cu_seqlens = ints(size.samples + 1), place_in_sample = ints(kept / size.ranks),
        position = ints(kept / size.ranks), sample_here({kept / size.ranks}, DType::kInt64),
        numbers = Cyclic(tokens, 7, tokens), gathered = ints(kept);
    for (int64_t t = 0; t < sample.numel(); ++t)
      sample.Set(t, static_cast<double>(1000 + t / (sample.numel() / size.samples)));
    ExpectAgreement({&sample, &kept_K, &place, &row, &place_here, &bypass, &cu_seqlens,
                     &place_in_sample, &sample_here, &position, &numbers, &gathered},
                    0, [&](const Stream& stream, At at) {
                      ChooseTokens(stream, {3, 4}, size.samples, at[0], at[1], at[2]);
                      FindKeptRows(stream, cut, size.samples, at[1], at[2], {at[3], at[4], at[5]});
                      FindKeptPart(stream, cut, size.samples, size.length, at[1], at[0],
                                   {at[6], at[7], at[8], at[9]});
                      GatherNumbers(stream, at[1], at[10], at[11]);
                    });
  }
}

TEST_P(CudaOpTest, LinearLayersAndTheirGradients) {
  struct Sizes {
    int64_t tokens, in, out;
  };
  for (const Sizes& size : {Sizes{64, 128, 256}, Sizes{33, 40, 24}, Sizes{17, 13, 7},
                            Sizes{1, 64, 64}, Sizes{130, 256, 8}}) {
    HostTensor x = Normal({size.tokens, size.in}, 1), w = Normal({size.out, size.in}, 2),
               bias = Normal({size.out}, 3), y = Normal({size.tokens, size.out}, 4),
               pre = Normal({size.tokens, size.out}, 5), act = Normal({size.tokens, size.out}, 6),
               dy = Normal({size.tokens, size.out}, 7), dx = Normal({size.tokens, size.in}, 8),
               dact = Normal({size.tokens, size.in}, 9),
               dw = HostTensor::Normal({size.out, size.in}, kF32, 10),
               dbias = HostTensor::Normal({size.out}, kF32, 11),
               dbias_before = HostTensor::Normal({size.in}, kF32, 12);
    ExpectAgreement({&x, &w, &bias, &y, &pre, &act, &dy, &dx, &dact, &dw, &dbias, &dbias_before},
                    2 * SumTolerance(dtype()), [](const Stream& stream, At at) {
                      LinearForward(stream, at[0], at[1], at[2], at[3]);
                      LinearActivationForward(stream, Activation::kGeluTanh, at[0], at[1], at[2],
                                              at[4], at[5]);
                      LinearBackwardInput(stream, at[6], at[1], at[7]);
                      LinearActivationBackwardInput(stream, Activation::kGeluTanh, at[6], at[1],
                                                    at[0], at[8], at[11]);
                      LinearBackwardWeight(stream, at[6], at[0], at[9], at[10]);
                    });
  }
}

TEST_P(CudaOpTest, LinearLayersTakeRowsWithStrides) {
  HostTensor x = Normal({24, 96}, 1), w = Normal({48, 32}, 2), y = Normal({24, 80}, 3),
             dw = HostTensor::Normal({48, 32}, kF32, 4);
  ExpectAgreement({&x, &w, &y, &dw}, 2 * SumTolerance(dtype()), [](const Stream& stream, At at) {
    LinearForward(stream, at[0].Slice(1, 32, 64), at[1], Tensor(), at[2].Slice(1, 16, 64));
    LinearBackwardWeight(stream, at[2].Slice(1, 16, 64), at[0].Slice(1, 0, 32), at[3], Tensor());
  });
}

TEST_P(CudaOpTest, OptimizersUpdateTheirSegments) {
  const int64_t count = 9000;
  // More segments than one launch takes, some empty, gaps between them; then neighbours, of which
  // some have all in common.
  std::vector<OptimizerSegment> segments;
  for (int i = 0; i < 600; ++i) {
    segments.push_back({i * 11, i * 11 + i % 11, 0.01f + 0.001f * i, i % 2 == 0 ? 0.1f : 0.0f});
    if (i % 3 == 0) segments.back().epsilon_factor = 1e6f;
  }
  segments.push_back({6601, 6640, 0.02f, 0.1f});
  segments.push_back({6640, 6700, 0.02f, 0.1f});
  segments.push_back({6700, 8001, 0.02f, 0});
  segments.push_back({8001, 8040, 0.03f, 0});
  segments.push_back({8040, 9000, 0.02f, 0});
  for (bool has_out : {false, true}) {
    HostTensor grad = HostTensor::Normal({count}, kF32, 1),
               m = HostTensor::Normal({count}, kF32, 2), v = Positive({count}, kF32, 3),
               master = HostTensor::Normal({count}, kF32, 4), out = Normal({count}, 5),
               momentum = HostTensor::Normal({count}, kF32, 6),
               sgd = HostTensor::Normal({count}, kF32, 7),
               lion_m = HostTensor::Normal({count}, kF32, 8),
               lion = HostTensor::Normal({count}, kF32, 9), lion_out = Normal({count}, 10);
    ExpectAgreement({&grad, &m, &v, &master, &out, &momentum, &sgd, &lion_m, &lion, &lion_out},
                    tolerance(), [&](const Stream& stream, At at) {
                      AdamWOptions adamw;
                      adamw.step = 3;
                      adamw.grad_scale = 0.7f;
                      const Tensor& copy = has_out ? at[4] : Tensor();
                      AdamWUpdate(stream, adamw, segments, at[0], at[1], at[2], at[3], copy);
                      SgdUpdate(stream, {0.9f, 0.5f}, segments, at[0], at[5], at[6], Tensor());
                      LionUpdate(stream, {0.9, 0.99, 0.5f}, segments, at[0], at[7], at[8],
                                 has_out ? at[9] : Tensor());
                    });
  }
}

TEST_F(AgreementTest, SumsOfSquaresSeeWhatIsNotFinite) {
  for (int64_t count : {1, 16384, 50001}) {
    HostTensor x = HostTensor::Normal({count}, kF32, 1), out = HostTensor::Of({2}, kF32, {3, 0});
    ExpectAgreement({&x, &out}, OpTolerance(kF32),
                    [](const Stream& stream, At at) { SumOfSquares(stream, 0.5f, at[0], at[1]); });
    EXPECT_EQ(out.Get(1), 0);
  }
  HostTensor zeros = HostTensor::Normal({50001}, kF32, 1), counted({1}, DType::kInt64);
  for (int64_t i = 0; i < 50001; i += 3) zeros.Set(i, 0);
  ExpectAgreement({&zeros, &counted}, 0,
                  [](const Stream& stream, At at) { CountZeros(stream, at[0], at[1]); });
  EXPECT_EQ(*counted.tensor().data<int64_t>(), 16667);
  // The flag alone: a sum with NaN in it compares with nothing.
  HostTensor x = HostTensor::Normal({40000}, kF32, 1), out = HostTensor::Of({2}, kF32, {0, 0});
  x.Set(30000, std::numeric_limits<double>::infinity());
  ExpectAgreement({&out}, 0, [&](const Stream& stream, At at) {
    if (stream.device().type == DeviceType::kCpu) {
      at[0].data<float>()[1] = 1;
      return;
    }
    const Tensor all(CudaAllocate(0, x.tensor().bytes(), "x"), kF32, {x.numel()}, stream.device());
    const Tensor both(CudaAllocate(0, 8, "out"), kF32, {2}, stream.device());
    CopyOnCuda(stream.cuda(), x, all);
    SumOfSquares(stream, 1, all, both);
    CopyOnCuda(stream.cuda(), both.Slice(0, 1, 2), at[0].Slice(0, 1, 2));
    stream.cuda()->Synchronize();
    CudaFree(0, all.raw());
    CudaFree(0, both.raw());
  });
}

}  // namespace
}  // namespace megatron::ops
