"""Many machines: several members run the same registrations on one board, each task held by one of them."""
