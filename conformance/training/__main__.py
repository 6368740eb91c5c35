"""`python -m conformance.training`; see `command`, which processes of its own can import."""

from conformance.training.command import main

raise SystemExit(main())
