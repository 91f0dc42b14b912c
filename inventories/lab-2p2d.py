"""The embedded lab (`fleet lab up -n 4`): two prefill and two decode instances behind one router."""

prefill = [("lab-0", {"ssh_hostname": "10.231.77.10"}), ("lab-2", {"ssh_hostname": "10.231.77.12"})]
decode = [("lab-1", {"ssh_hostname": "10.231.77.11"}), ("lab-3", {"ssh_hostname": "10.231.77.13"})]
proxy = ["lab-0"]
