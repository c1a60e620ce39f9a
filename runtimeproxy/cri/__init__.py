"""The calls of CRI that are looked at, and what the proxy knows of pods and containers.

v1alpha2 has the same messages under the same numbers as v1, so both are read with one definition.
"""
