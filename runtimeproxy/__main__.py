"""``python -m runtimeproxy`` is ``koord-runtimeproxy``."""

from runtimeproxy.cli import main

main()
