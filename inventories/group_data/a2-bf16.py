recipe = "qwen3-235b-a22b/a2-bf16"
weights_dir = "/mnt/models"
ssh_user = "ops"
ssh_strict_host_key_checking = "yes"
_sudo = True
