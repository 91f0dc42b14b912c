"""The embedded lab (`fleet lab up -n 2`): two replicas of a tiny model behind the front door."""

serve = [
    ("lab-0", {"ssh_hostname": "10.231.77.10"}),
    ("lab-1", {"ssh_hostname": "10.231.77.11"}),
]
proxy = ["lab-0"]
