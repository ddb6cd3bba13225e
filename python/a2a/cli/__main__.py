"""``python -m a2a.cli`` is the ``a2a`` command, like ``python -m a2a``."""

from . import main

raise SystemExit(main())
