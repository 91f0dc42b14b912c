"""The embedded lab (`fleet lab up -n 2`): one instance over two hosts with Ray."""

ray_head = [("lab-0", {"ssh_hostname": "10.231.77.10"})]
ray_worker = [("lab-1", {"ssh_hostname": "10.231.77.11"})]
