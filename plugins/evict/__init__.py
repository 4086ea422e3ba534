"""Nothing is evicted before it is saved: gangs leave as a whole, after a save that was asked for or at a deadline."""
