"""The vendors' tools of a dressed host, played from its scenario. Runs on the hosts: standard library only."""
