#!/bin/bash
# Predicts a table of runs, explains a step and searches layouts, as a user does.
set -u
readonly tools="$PWD/tools" pretrain_gpt="$PWD/megatron/train/pretrain_gpt"
unset BUILD_WORKING_DIRECTORY
cd "$TEST_TMPDIR" || exit 1

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# expect_code CODE PATTERN FLAGS...: plan ends with CODE, and its output has PATTERN.
expect_code() {
  local code="$1" pattern="$2"
  shift 2
  "$tools/plan/plan" "$@" > output 2>&1
  local got=$?
  [[ $got == "$code" ]] || fail "$* ended with $got, not $code: $(cat output)"
  grep -q -e "$pattern" output || fail "$* did not say '$pattern': $(cat output)"
}

cat > rows.csv <<END
model,gpu,gpus,tp,pp,gbs,seq,iteration_s
GPT3-175B,A100-80GB,1024,8,16,1536,2048,20
Llama3.1-405B,H100,16384,8,16,2048,8192,
Nobody,H100,8,1,1,8,8192,1
END

# A row that can't be predicted has its reason, and the others their predictions.
expect_code 0 'iteration_s *1 all' --predict=rows.csv --output=out.csv --assume=dtype=bf16
grep -q '^GPT3-175B.*,21\.6.*dtype=bf16' out.csv || fail "$(cat out.csv)"
grep -q "^Nobody.*,,,,,.*model 'Nobody' is unknown" out.csv || fail "$(cat out.csv)"

# What was measured is drawn beside it.
expect_code 0 'rows' --predict=rows.csv --output=drawn.csv --assume=dtype=bf16 --picture=drawn.svg
grep -q '<title>predicted: 21' drawn.svg || fail "$(cat drawn.svg)"
cut -d, -f1-7 rows.csv > plain.csv
expect_code 20 'plain.csv has no measured column' --predict=plain.csv --output=drawn.csv --picture=drawn.svg

# A GPU with a third of the FLOPs takes longer.
cat > facts.textproto <<END
hardware { name: "A100-80GB" bf16_tflops: 100 memory_gib: 80 memory_gb_per_s: 2000
           link_gb_per_s: 300 domain: 8 network_gb_per_s: 25 }
implementation { name: "megatron_2021" product_efficiency: 0.8 attention_efficiency: 0.2
                 memory_efficiency: 1 link_efficiency: 0.8 network_efficiency: 0.6
                 low_precision_efficiency: 1 }
model { name: "GPT3-175B" layers: 96 hidden: 12288 ffn: 49152 heads: 96 kv_heads: 96
        head_dim: 128 vocab: 50304 }
END
expect_code 0 'rows' --predict=rows.csv --output=slow.csv --facts=facts.textproto
grep -q '^GPT3-175B.*,[5-9][0-9]\.' slow.csv || fail "$(cat slow.csv)"

# Mistakes name the file or the flag.
expect_code 20 'name a table' --output=out.csv
grep -v 'implementation\|efficiency' facts.textproto > hardware.textproto
for task in --config=gpt3_857m --explain=gpt3_857m --guide=guide.md; do
  expect_code 20 "hardware.textproto has no entry 'implementation': " --facts=hardware.textproto "$task"
done
expect_code 20 "hardware.textproto has no entry 'implementation': " --facts=hardware.textproto \
  --predict=rows.csv --output=out.csv
expect_code 20 "facts.textproto: there is no implementation 'megatron_cc'; there are: megatron_2021" \
  --facts=facts.textproto --gpu=A100-80GB --config=gpt3_857m --gpus=1
expect_code 20 "facts.textproto: there is no hardware 'H100'; there are: A100-80GB" \
  --facts=facts.textproto --explain=gpt3_857m
sed -i 's/bf16_tflops: 100/bf16_tflops: -1/' facts.textproto
expect_code 20 'facts.textproto.*bf16_tflops' --predict=rows.csv --output=out.csv --facts=facts.textproto
echo 'gpu,kernel' > kernels.csv
expect_code 20 "kernels.csv: there is no column 'pass'" --predict=rows.csv --output=out.csv --kernels=kernels.csv
expect_code 20 "out.csv.*column 'predicted_step_s' already" --predict=out.csv --output=again.csv
expect_code 20 "assume: 'gpu' is not key=value" --predict=rows.csv --output=o.csv --assume=gpu

# A step is explained: its parts, traffic, memory and run; the page has both curves.
expect_code 0 'tensor 2 x pipeline 2 x data 2' --explain=gpt3_857m --gpus=8 --tokens=2e10 \
  --price=2 --watts=1000 --html=page.html --timeline=trace.json \
  --set=parallel.use_distributed_optimizer=true
for text in 'idle in the pipeline (bubble)' '^  tensor  *2 ' '^  pipeline  *2 ' '^  data  *2 ' \
  'reduce-scatter of' '^  0  *103.5 million ' '^  in all .* 100.0 %' '^  tokens  *20 billion'; do
  grep -q -e "$text" output || fail "no '$text' in: $(cat output)"
done
[[ $(sed -n 's/^  GPU hours *//p' output) == $(sed -n 's/^  energy *\(.*\) kWh/\1/p' output) ]] ||
  fail "1,000 W for each GPU: $(cat output)"
for text in 'Strong scaling' 'Weak scaling' 'The passes of a step' 'data parallelism alone'; do
  grep -q "$text" page.html || fail "no '$text' in the page"
done
[[ $(grep -o '<svg' page.html | wc -l) -ge 3 ]] || fail 'the page has no pictures'
[[ $(grep -o '"forward 7"' trace.json | wc -l) == 2 ]] || fail 'each of two stages has 8 micro-batches'
if grep -q '<script\|https*://' page.html; then fail 'the page needs more than itself'; fi

for text in 'what saves communication' 'and gradients in codes of 8 bits'; do
  grep -q "$text" page.html || fail "no '$text' in the page"
done

# Tensor-parallel ranks that form a grid are compared in all forms, those of no grid in none.
grep -q 'Forms of tensor parallelism' output && fail "two ranks form no grid: $(cat output)"
grep -q '^These 2 tensor-parallel ranks form no grid, .*: 1d is their only form\.$' output || fail "$(cat output)"
expect_code 0 'Forms of tensor parallelism over these 4 ranks' --explain=gpt3_857m --gpus=8 \
  --set=parallel.tensor_model_parallel_size=4,parallel.sequence_parallel=true,train.micro_batch_size=2 --html=forms.html
grep -q '^  1d  *any .*-  *-$' output || fail "no row of 1d: $(cat output)"
grep -q '^  2d  *2n .*B .*([0-9.]*)$' output || fail "no row of 2d: $(cat output)"
grep -q ' is refused: ' output && fail "a run can have both: $(cat output)"
grep -q 'faster from' forms.html || fail 'no forms in the page'
# What a run would refuse is marked with the trainer's own reason, and what the GPU can't hold.
expect_code 0 '^  2d is refused: .*train.micro_batch_size = 1: must be divisible by 2, the rows and columns of' \
  --explain=gpt3_857m --gpus=8 --set=parallel.tensor_model_parallel_size=4,train.micro_batch_size=1
grep -q '^  2d  *2n  *-  *-  *- .*([0-9.]*)$' output || fail "a step of it: $(cat output)"
expect_code 0 '^  1d is refused: .*model.num_attention_heads = 12: must be divisible by parallel.tensor_model_parallel_size = 8' \
  --explain=gpt2_124m --gpus=8 --html=forms.html \
  --set=parallel.tensor_model_parallel_size=8,parallel.tensor_parallel_mode=3d,train.micro_batch_size=4,train.global_batch_size=4
grep -q '^  3d  *4n .*B  *[0-9,]* (.*-$' output || fail "the cube's step stays: $(cat output)"
grep -q '1d is refused' forms.html || fail 'no refusal in the page'
expect_code 0 '^  2d is refused: .*cannot be used with optimizer.optimizer = muon' --explain=gpt3_857m \
  --gpus=8 --set=parallel.tensor_model_parallel_size=4,train.micro_batch_size=2,optimizer.optimizer=muon
expect_code 0 '^  1d does NOT fit: a GPU of H100 has 80' --explain=gpt3_857m --gpus=8 \
  --set=parallel.tensor_model_parallel_size=8,parallel.pipeline_model_parallel_size=,model.hidden_size=12288,model.num_attention_heads=96,train.micro_batch_size=4,train.global_batch_size=16

# A measured step stands beside the simulated one: in one trace, on the page and in a picture.
pipeline=model.num_layers=2,model.hidden_size=64,model.num_attention_heads=4,model.seq_length=64
pipeline+=,train.micro_batch_size=1,train.global_batch_size=4,parallel.pipeline_model_parallel_size=2
"$pretrain_gpt" --config=gpt_demo --set=${pipeline//,/ --set=} --set=train.train_iters=3 --set=train.eval_iters=0 --set=optimizer.lr_warmup_iters=1 \
  --set=logging.profile=true --set=logging.profile_step_start=1 --set=logging.profile_step_end=2 \
  --set='logging.profile_ranks=[0, 1]' --set=logging.profile_dir="$PWD/profile" > run 2>&1 || fail "$(cat run)"
expect_code 0 'pipeline 2' --explain=gpt_demo --set=$pipeline --gpu=CPU --measured=profile \
  --timeline=both.json --html=both.html --picture=both.svg
for title in 'simulated stage 0 of 2' 'simulated stage 1 of 2' 'measured rank 0' 'measured rank 1'; do
  grep -q "$title" both.json || fail "no '$title' in the trace"
done
[[ $(grep -o '"forward 3"' both.json | wc -l) == 4 ]] || fail 'two stages and two ranks have 4 micro-batches'
for file in both.html both.svg; do
  grep -q 'A step, simulated and measured' $file || fail "no measured step in $file"
done
expect_code 20 'has rank 1, and this layout has 1 rank(s)' --explain=gpt_demo --measured=profile
expect_code 20 'has no trace_rank_0.json' --explain=gpt_demo --measured=.
expect_code 20 'measured belongs to --explain' --config=gpt_demo --gpus=2 --measured=profile

# A list is one value, and so are quotes with commas.
expect_code 0 'tensor 1 x context 8 x pipeline 1' --explain=gpt3_857m --gpus=8 \
  '--set=parallel.tensor_model_parallel_size=1,parallel.pipeline_model_parallel_size=1,parallel.context_parallel_size=8,parallel.cp_comm_type=a2a_p2p,parallel.hierarchical_context_parallel_sizes=[2,4]'
expect_code 0 'pipeline 2' --explain=gpt3_857m --gpus=4 '--set=parallel.pipeline_model_parallel_layout="Et*12|,t*12L"'
expect_code 20 'set is given twice' --explain=gpt3_857m --set=model.num_layers=12 --set=train.train_iters=5

# One rank sends nothing.
expect_code 0 'on 1 x H100: one rank' --explain=gpt2_124m
grep -q 'What a rank sends' output && fail "$(cat output)"
# A layout may be right with --gpus alone.
expect_code 0 'expert *4' --explain=moe_tiny --gpus=4 --set=parallel.expert_model_parallel_size=4
expect_code 20 "gpus=6 can't be divided by the 4 ranks.*--config=gpt3_857m search a layout" --explain=gpt3_857m --gpus=6
expect_code 20 'tensor_model_parallel_size = 0: expects' --explain=gpt3_857m --gpus=6 \
  --set=parallel.tensor_model_parallel_size=0
# What is lost most, and what may be done.
expect_code 0 'Most is lost where tensor-parallel ranks wait' --explain=gpt3_857m --gpus=4
grep -q '^not measured on H100, taken from a curve: products' output || fail "$(cat output)"
expect_code 0 'parallel.num_virtual_stages_per_pipeline_rank' --explain=gpt3_857m --gpus=16 \
  --set=parallel.tensor_model_parallel_size=1,parallel.pipeline_model_parallel_size=8
# Limits that can't be.
expect_code 20 'memory_limit must be from 0' --config=gpt3_857m --gpus=1 --memory_limit=nan
expect_code 20 'best must be from 1' --config=gpt3_857m --gpus=1 --best=100000
expect_code 20 "there is no hardware 'Z80'; there are: " --config=gpt3_857m --gpus=1 --gpu=Z80
expect_code 0 "activations of the encoder" --explain=t5_demo --set=parallel.tensor_model_parallel_size=2
expect_code 0 'with the encoder on 1\|dp 2' --config=t5_demo --gpus=2 --set=train.global_batch_size=48
expect_code 20 'H100' --explain=gpt2_124m --gpu=Z80
expect_code 20 'megatron_core' --explain=gpt2_124m --program=none
expect_code 20 'num_layers' --explain=gpt2_124m --set=model.num_layers=-1

# What tools/gpu_check writes on a GPU are facts that the planner takes.
mkdir results
cat > results/check.jsonl <<END
{"what": "kernel", "name": "BM_Linear/1024/4096/manual_time", "TFLOP/s": 700.0, "microseconds": 196.0}
{"what": "kernel", "name": "BM_Attention<AttentionKernel::kHopper, 64>/manual_time", "microseconds": 300.0}
{"what": "kernel", "name": "BM_Gelu/manual_time", "GB/s": 4000.0, "microseconds": 70.0}
END
python3 -c 'import sys; sys.path.insert(0, sys.argv[1]); import calibration
print(calibration.write("results", "NVIDIA H200", 143771))' "$tools/gpu" > output || fail 'calibration.py'
grep -q 'system.hardware_file=results/hardware.textproto' output || fail "$(cat output)"
expect_code 0 'NVIDIA H200' --config=gpt3_857m --gpus=2 --gpu='NVIDIA H200' \
  --facts=results/hardware.textproto --kernels=results/kernels.csv
grep -q '^guesses, .*link_efficiency' output || fail "$(cat output)"
grep -q '^guesses, .*product_efficiency' output && fail "it was measured: $(cat output)"

# A search prints the best layouts, and its configuration is one that the trainer takes.
expect_code 0 '  the others have [0-9]*,[0-9]* layouts' --config=gpt3_857m --gpus=8 --output=chosen.textproto
for text in 'held: train.global_batch_size=16, model.seq_length=2048$' '80 GiB each; a layout may take 76.0 GiB of a GPU (5 % are left to CUDA and NCCL)' \
  'chosen anew: parallel.tensor_model_parallel_size=2, .* of gpt3_857m (--set=FIELD=VALUE holds a field)'; do
  grep -q -e "$text" output || fail "no '$text' in: $(cat output)"
done
[[ $(grep -c ' GiB  .*dp ' output) == 5 ]] || fail "$(cat output)"
cp output first_search
grep -q 'its step\|cut in more ways' output || fail "no reason: $(cat output)"
grep -q 'taken from a curve' output || fail "no missing shapes: $(cat output)"
"$pretrain_gpt" --config=chosen.textproto --dry_run > dry_run || fail "$(cat chosen.textproto)"
grep -q 'global_batch_size: 16' chosen.textproto || fail "$(cat chosen.textproto)"
expect_code 0 'samples' --config=gpt3_857m --gpus=4 --set=model.seq_length=1024 --gpu=A100

# The same layout takes the same time, whoever is asked.
step=$(sed -n 's/^ *\([0-9.]*\) ms .*%.*GiB .*/\1/p' first_search | head -1)
expect_code 0 'A step of' --explain=chosen.textproto --gpus=8
grep -q "in all  *$(printf %.1f "$step") ms" output || fail "the search said $step ms: $(cat output)"
# What isn't priced and what is guessed is told by both.
for text in '^not priced: .*model.hidden_dropout=0.1' '^guesses, .*product_efficiency.* of megatron_cc'; do
  grep -q "$text" output || fail "no '$text' in: $(cat output)"
  grep -q "$text" first_search || fail "no '$text' in: $(cat first_search)"
done

# A model that fits with the optimizer on the host alone, and what it would need without.
expect_code 0 'needed: the optimizer.s states on the host; without them there, it would fit on 2 GPUs' \
  --config=gpt3_857m --gpus=1 --memory_limit=5 --output=host.textproto
grep -q 'with [0-9.]* GiB of the host' output || fail "$(cat output)"
grep -q '^its memory without a GPU: --dry_run=full --set=system.device=cuda$' output || fail "$(cat output)"
grep -q 'optimizer_cpu_offload: true' host.textproto || fail "$(cat host.textproto)"
expect_code 0 'of the host' --explain=host.textproto
"$pretrain_gpt" --config=host.textproto --set=system.device=cuda --dry_run=full > dry_run ||
  fail "$(cat host.textproto)"
grep -q 'and in host memory' dry_run || fail "$(cat dry_run)"
expect_code 0 'needed: the optimizer.s states, weights and gradients on the host; without them there, ' \
  --config=gpt3_857m --gpus=1 --memory_limit=2 --output=weights.textproto
grep -q 'optimizer and weights on the host' output || fail "$(cat output)"
# What waits for the link to the host doesn't wait for other ranks, which this one lacks.
expect_code 0 '^  waiting for the link to the host ' --explain=weights.textproto
grep -q 'It waits for weights and gradients on their way from the host or to it in ' output ||
  fail "$(cat output)"
! grep -q 'data-parallel ranks\|overlap_grad_reduce hides' output || fail "$(cat output)"
expect_code 20 'and on [0-9]* GPUs with the host.s memory' --config=gpt3_857m --gpus=1 --memory_limit=0.5
expect_code 20 'none of .* of the host.s memory, of which a rank may have 1.00 GiB' \
  --config=gpt3_857m --gpus=1 --memory_limit=5 --host_memory_limit=1
# A limit of 0 leaves nothing there.
expect_code 20 'none of .* fits in the 5.00 GiB of a rank' --config=gpt3_857m --gpus=1 --memory_limit=5 \
  --host_memory_limit=0
! grep -q 'of the host.s memory' output || fail "$(cat output)"
expect_code 0 '^host: no layout has anything there, by --host_memory_limit=0$' --config=gpt3_857m --gpus=1 \
  --host_memory_limit=0
expect_code 20 'host_memory_limit must be from 0' --config=gpt3_857m --gpus=1 --host_memory_limit=-1
# A model whose layers keep more than there is room for but in host memory.
deep=model.num_layers=48
expect_code 20 'activations on the host) takes' --config=gpt3_857m --gpus=1 --memory_limit=0.5 --set=$deep
least=$(sed -n 's/.*activations on the host) takes \([0-9.]*\) \([MG]\)iB .*/\1 \2/p' output |
  awk '{ print 1.03 * $1 / ($2 == "M" ? 1024 : 1) }')
expect_code 0 'needed: the optimizer.s states, weights, gradients and all activations on the host; without them there, ' \
  --config=gpt3_857m --gpus=1 --memory_limit="$least" --set=$deep --output=deep.textproto
grep -q 'cpu_offloading_num_layers: 48' deep.textproto || fail "$(cat deep.textproto)"
# Long samples whose attention has more of all tokens than there is room for.
long=model.num_layers=4,model.seq_length=32768,recompute.mlp_chunk_tokens=4096,train.logits_chunk_tokens=1024
expect_code 0 'needed: the optimizer.s states.* and attention.s queries, keys and values on the host; without them there, ' \
  --config=gpt3_857m --gpus=1 --memory_limit=2.1 --set=$long --output=long.textproto
grep -q 'attention in chunks of 4096 tokens on the host' output || fail "$(cat output)"
grep -q 'attention_chunks_on_host: true' long.textproto || fail "$(cat long.textproto)"
"$pretrain_gpt" --config=long.textproto --set=system.device=cuda --dry_run=full > dry_run ||
  fail "$(cat long.textproto)"
grep -q 'and in host memory' dry_run || fail "$(cat dry_run)"
# Where the host has no room for states, the disk may have some.
cat > nvme.textproto <<END
hardware { name: "nvme" bf16_tflops: 989 memory_gib: 80 memory_gb_per_s: 3350 link_gb_per_s: 450
           domain: 8 network_gb_per_s: 50 host_link_gb_per_s: 50 host_memory_gb_per_s: 50
           host_memory_gb: 250 disk_read_gb_per_s: 3 disk_write_gb_per_s: 2 disk_gb: 500
           disk_directory: "/mnt/nvme" }
implementation { name: "megatron_cc" product_efficiency: 0.8 attention_efficiency: 1
                 memory_efficiency: 0.8 link_efficiency: 1 network_efficiency: 1
                 low_precision_efficiency: 1 }
END
expect_code 0 'needed: the optimizer.s states in files; without them there, ' --config=gpt3_857m --gpus=1 \
  --gpu=nvme --facts=nvme.textproto --memory_limit=5 --host_memory_limit=1 --output=files.textproto
grep -q 'with [0-9.]* MiB of the host, and [0-9.]* GiB in files' output || fail "$(cat output)"
grep -q '^disk: .* 3 GB/s read and 2 GB/s written' output || fail "$(cat output)"
! grep -q '^not priced: .*optimizer_offload_path' output || fail "$(cat output)"
grep -q 'optimizer_offload_path: "/mnt/nvme"' files.textproto || fail "$(cat files.textproto)"
"$pretrain_gpt" --config=files.textproto --set=system.device=cuda --dry_run=full > dry_run ||
  fail "$(cat files.textproto)"
grep -q 'and in a file in /mnt/nvme' dry_run || fail "$(cat dry_run)"
# Activations lie there, too, where that is written.
expect_code 0 'activations on the host' --config=gpt3_857m --gpus=1 \
  --set=recompute.cpu_offloading_num_layers=24 --output=there.textproto
! grep -q '^needed' output || fail "$(cat output)"
! grep -q '^not priced: .*cpu_offloading' output || fail "$(cat output)"
# A search takes the layers of all of the model, or none.
expect_code 20 'of all layers on the host or of none: .* part of the model, 24 without a pipeline; leave' \
  --config=gpt3_857m --gpus=1 --set=recompute.cpu_offloading_num_layers=12
expect_code 20 'recompute.cpu_offloading_num_layers = -1: expects an integer from 0 to 10000' \
  --config=gpt3_857m --gpus=1 --set=recompute.cpu_offloading_num_layers=-1
expect_code 20 'host_memory_limit belongs to' --explain=gpt3_857m --host_memory_limit=3

# What --set writes of a layout is held, a section or a field.
expect_code 0 '; and by --set parallel.tensor_model_parallel_size=4, train.micro_batch_size=1$' --config=gpt3_857m \
  --gpus=8 --set=parallel.tensor_model_parallel_size=4,train.micro_batch_size=1
[[ $(grep -c ' GiB  tp 4.*micro-batch 1\(,\|$\)' output) == 5 ]] || fail "not all are tp 4: $(cat output)"
grep -q '^chosen anew: parallel.pipeline_model_parallel_size=2 of gpt3_857m' output || fail "$(cat output)"
expect_code 20 'no layout of 8 GPUs has all that is written: parallel.tensor_model_parallel_size=16;' \
  --config=gpt3_857m --gpus=8 --set=parallel.tensor_model_parallel_size=16

# A processor has ranks, which share its memory, and no CUDA.
cat > mine.textproto <<END
hardware { name: "mine" fp32_tflops: 0.1 bf16_tflops: 0.1 memory_gib: 16 memory_gb_per_s: 20
           link_gb_per_s: 8 domain: 64 network_gb_per_s: 1 cores: 2 thread_efficiency: 0.9 }
implementation { name: "megatron_cc" product_efficiency: 0.8 attention_efficiency: 1
                 memory_efficiency: 0.8 link_efficiency: 1 network_efficiency: 1
                 low_precision_efficiency: 1 }
END
expect_code 0 'hardware: 4 ranks on the 2 cores and in the 16.0 GiB of mine; a layout may take 3.8 GiB of a rank (5 % are left to other programs)' \
  --config=gpt_demo --gpus=4 --gpu=mine --facts=mine.textproto --set=train.global_batch_size=8
grep -q 'tokens/s/rank' output || fail "$(cat output)"
grep -q '[0-9] MiB  .*dp 4' output || fail "small memories are MiB: $(cat output)"
grep -q 'GPU\|CUDA\|NCCL' output && fail "a processor has none: $(cat output)"
expect_code 0 'memory, 8 GB/s' --explain=gpt_demo --gpus=2 --gpu=mine --facts=mine.textproto --set=train.global_batch_size=8
grep -q '^  rank hours' output || fail "$(cat output)"
grep -q 'GPU' output && fail "a processor has none: $(cat output)"
expect_code 0 'between processes, 1 GB/s' --explain=gpt_demo --gpus=2 --gpu=mine --facts=mine.textproto \
  --set=train.global_batch_size=8,parallel.ranks_as=processes

# Where hosts are joined by a slow network, two levels and, if they are written, codes pay.
sed -i 's/domain: 64 network_gb_per_s: 1/domain: 2 network_gb_per_s: 0.001/' mine.textproto
zero3=parallel.data_parallel_size=4,parallel.use_distributed_optimizer=true,parallel.data_parallel_sharding_strategy=optim_grads_params
zero3+=,train.global_batch_size=16,train.micro_batch_size=1
expect_code 0 ' in two levels' --explain=gpt_demo --gpu=mine --facts=mine.textproto \
  --set=$zero3,parallel.hierarchical_collectives_ranks_per_host=2
expect_code 0 'outer gradients .* 0.1 x all-reduce' --explain=gpt_demo --gpu=mine --facts=mine.textproto \
  --set=$zero3,parallel.num_distributed_optimizer_instances=2,diloco.sync_every=10
grep -q '^not priced.*diloco' output && fail "islands are priced: $(cat output)"
expect_code 0 'ZeRO-3 with secondary shards in 2 hosts' --config=gpt_demo --gpus=4 --gpu=mine \
  --facts=mine.textproto --set=$zero3,parallel.zero_hpz_partition_size=2
grep -q 'change the loss' output && fail "no codes are written: $(cat output)"
expect_code 0 'gradients sent in 4 bits' --config=gpt_demo --gpus=4 --gpu=mine --facts=mine.textproto \
  --set=$zero3,parallel.zero_quantized_gradients=true
grep -q 'zero_quantized_gradients changes the loss' output || fail "$(cat output)"
expect_code 23 'no layout is searched with islands' --config=gpt_demo --gpus=4 --gpu=mine \
  --facts=mine.textproto --set=train.global_batch_size=16,diloco.sync_every=10

# A large search takes seconds; this limit is for busy machines and slow builds.
SECONDS=0
expect_code 0 'pp 8' --config=gpt3_857m --gpus=1024 --gpu=A100 \
  --set=model.num_layers=96,model.hidden_size=12288,model.num_attention_heads=96,train.global_batch_size=1536
((SECONDS < 60)) || fail "the search took $SECONDS s"

# What fits nowhere, and what can't be searched.
expect_code 20 'would fit on [0-9]* GPUs' --config=gpt3_857m --gpus=1 --memory_limit=0.5
expect_code 20 'no layout divides this model over 7 GPUs' --config=gpt3_857m --gpus=7
expect_code 20 'gpus is the number' --config=gpt3_857m
expect_code 20 'no configuration nobody' --config=nobody --gpus=1
expect_code 20 'price=-3 is not between' --explain=gpt3_857m --price=-3
expect_code 20 'or let --config=gpt3_857m search a layout' --explain=gpt3_857m --gpus=1
expect_code 0 'on 4 x H100: tensor 2 x pipeline 2 x data 1$' --explain=gpt3_857m --gpus=4

# A flag without effect is refused, with the mode that it belongs to.
for flag in --html=x --timeline=x --price=2 --watts=2 --tokens=2 --program=megatron_core; do
  expect_code 20 "error: ${flag%%=*} belongs to --explain, and has no effect in --config (a search)" \
    --config=gpt3_857m --gpus=8 $flag
done
for flag in --gpus=3 --gpu=A100 --set=a=b; do
  expect_code 20 "error: ${flag%%=*} belongs to --config (a search) and --explain, and" \
    --predict=rows.csv --output=o.csv $flag
done
expect_code 20 'assume belongs to --predict' --config=gpt3_857m --gpus=8 --assume=gpu=A100
expect_code 20 'best belongs to --config (a search)' --explain=gpt3_857m --best=3
expect_code 20 'memory_limit belongs to' --predict=rows.csv --output=o.csv --memory_limit=3
expect_code 20 'output belongs to --predict and --config (a search)' --explain=gpt3_857m --output=x
expect_code 20 'give one of' --explain=gpt3_857m --config=gpt3_857m
expect_code 20 'gpus belongs to .*no effect in --guide' --guide=guide.md --gpus=8
expect_code 20 'global_batch_size: must be written' --config=gpt3_857m --gpus=1 --set=train.global_batch_size=
expect_code 20 'model.num_layers' --config=gpt3_857m --gpus=1 --set=model.num_layers=-1
echo PASSED
