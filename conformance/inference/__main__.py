"""`python -m conformance.inference`; the code is in `command`, as child processes must be able to import it."""

from conformance.inference.command import main

raise SystemExit(main())
