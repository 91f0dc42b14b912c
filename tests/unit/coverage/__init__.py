"""The failures that users report, each planted: what tells it, and a healthy twin that gives nothing.

Each module holds CASES for one side of the product; tests/unit/test_coverage.py runs them all and holds them against
files/rules/coverage.yaml, from which docs/coverage.md is made.
"""
