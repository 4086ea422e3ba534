"""The project's speed beside what it competes with: `make bench`. Nothing here is a test, and no time is asserted."""
