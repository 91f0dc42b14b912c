recipe = "qwen3-235b-a22b-w8a8/a3-128k"
weights_dir = "/mnt/models"
ssh_user = "ops"
ssh_strict_host_key_checking = "yes"
_sudo = True
