"""The embedded lab (`fleet lab up -n 2`): one prefill and one decode behind their router."""

prefill = [("lab-0", {"ssh_hostname": "10.231.77.10"})]
decode = [("lab-1", {"ssh_hostname": "10.231.77.11"})]
proxy = ["lab-0"]
