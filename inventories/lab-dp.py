"""The embedded lab (`fleet lab up -n 2`): one instance, data parallel over two hosts, each bound to one core."""

serve = [
    ("lab-0", {"ssh_hostname": "10.231.77.10", "env": {"VLLM_CPU_OMP_THREADS_BIND": "0"}}),
    ("lab-1", {"ssh_hostname": "10.231.77.11", "env": {"VLLM_CPU_OMP_THREADS_BIND": "1"}}),
]
