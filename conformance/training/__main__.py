"""`python -m conformance.training`; the code is in `command`, as child processes must be able to import it."""

from conformance.training.command import main

raise SystemExit(main())
