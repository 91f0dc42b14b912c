"""The console script ``fleet``: the one part of the core that may touch the edge."""
