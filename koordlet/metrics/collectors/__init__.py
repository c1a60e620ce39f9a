"""One collector a file: which counters of which level are read, and how often (hazard H29)."""
