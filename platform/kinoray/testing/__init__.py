"""What every method must do: a function per promise, the small stream they run on, the engine driven for tests."""
