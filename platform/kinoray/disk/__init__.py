"""What must survive a crash: durable writes, locks, JSON lines, and where things lie."""
