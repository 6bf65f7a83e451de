"""The video feature store: every task's features on disk, and exact search over them."""
