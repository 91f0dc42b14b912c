export VLLM_WORKER_MULTIPROC_METHOD=spawn
export CUDA_DEVICE_MAX_CONNECTIONS=1
vllm serve Qwen/Qwen3-235B-A22B \
--tensor-parallel-size 8 \
--gpu-memory-utilization 0.90 \
--max-num-batched-tokens 8192 \
--max-num-seqs 512 \
--enable-chunked-prefill \
--enable-prefix-caching \
--max-model-len 8192 \
--distributed-executor-backend mp \
--moe-backend triton
