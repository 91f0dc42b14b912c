"""Which flags and variables each vLLM version has, and what its own parser would say of a command line.

``table`` holds what is known of a version, ``parse`` judges words against it; both also run in the lab's image, where
nothing else of this project is. ``extract`` (with ``source`` and ``variables``) reads a table from a wheel or an
installed package without importing it. ``given`` tells which flag a word stands for, ``history`` since when there is
one, and ``known`` holds the lists beside the tables: replacements, vllm-ascend's keys and variables, HCCL's.
"""
