"""The failures that users report, each planted: what tells it, and a healthy twin that gives nothing.

Each module holds CASES for one side of the product, failures.yaml the list; tests/unit/test_coverage.py runs them, and
docs/coverage.md is made from them.
"""
