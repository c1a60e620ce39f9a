"""The commands of ``koord-runtimeproxy`` that are not the daemon."""
