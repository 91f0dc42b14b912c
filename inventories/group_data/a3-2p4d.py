recipe = "qwen3-235b-a22b-w8a8/a3-pd"
sets = 2
proxy_port = 12347
weights_dir = "/mnt/models"
ssh_user = "ops"
ssh_strict_host_key_checking = "yes"
_sudo = True
