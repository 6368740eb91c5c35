"""One call in a process of its own, which may crash or hang; locks and folders that go with it."""
