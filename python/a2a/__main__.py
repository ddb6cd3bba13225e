"""``python -m a2a`` is the ``a2a`` command."""

from .cli import main

raise SystemExit(main())
