"""`python -m conformance.inference`; see `command`, which processes of its own can import."""

from conformance.inference.command import main

raise SystemExit(main())
