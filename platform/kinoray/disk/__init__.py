"""What must survive a crash: durable writes, locks, leases, JSON lines, and where things lie."""
