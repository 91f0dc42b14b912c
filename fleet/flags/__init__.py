"""Which flags each vLLM version has, and what its own parser would say of a command line.

``table`` holds what is known of a version, ``parse`` judges words against it, ``extract`` (with ``source``) reads a
table from a wheel or an installed package without importing it.
"""
